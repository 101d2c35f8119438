"""Co-scheML's decisions through `filter` on /gpushare-scheduler: its published table and pairs."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extender_world import GPUSHARE, StubCluster, args, bind_args
from msgspec.structs import replace

from weft.cluster.extender.routes import Route
from weft.cluster.extender.service import Extender
from weft.core.engine import Engine, PodAdded, PodSeenBound, PolicyInput
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.interference.public_datasets import slowdowns
from weft.interference.table import from_static
from weft.kube.pods import Pod
from weft.model.interference_table import INTERFERENCE, to_input
from weft.model.reason import TEXT, Code
from weft.testing import node, placement

ROUTE = Route(GPUSHARE.path, "coscheml", 500, GPUSHARE.report)
SMALL = {
    "LAMMPS": {"LAMMPS": -1, "QMCPACK": 1.1, "classification": 1.0, "CNN": 1.1},
    "QMCPACK": {"LAMMPS": 1.6, "QMCPACK": 1.6, "classification": 1.2, "CNN": 2.8},
    "classification": {"LAMMPS": 1.03, "QMCPACK": 1.03, "classification": 1.0, "CNN": 1.8},
    "CNN": {"LAMMPS": 1.14, "QMCPACK": 1.14, "classification": 1.1, "CNN": 1.9},
}
"""A table of the same order as the published one."""
PUBLISHED = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "coscheml/interference.json"


def world(running: dict[str, str], table: dict[str, dict[str, float]]) -> StubCluster:
    cluster = StubCluster()
    cluster.settings = DialectSettings(gpushare_unit="MiB", interference_table=True)
    profile = Profile("coscheml", [built_in().create("coscheml")])
    cluster.engine = Engine([profile], [node(name, gpus=1) for name in running])
    told = to_input(from_static(1, slowdowns(table, "the table")))
    cluster.handle(PolicyInput(INTERFERENCE, told))
    for name, application in running.items():
        if application:
            place = placement(f"on-{name}", name, 0, memory_mib=300)
            place = msgspec.structs.replace(place, application=application)
            cluster.handle(PodSeenBound(place))
    return cluster


def waits(cluster: StubCluster, *applications: str) -> None:
    """Pods that the watch shows, with these container names, and that nobody asked about yet."""
    for name in applications:
        found = msgspec.convert(asked(name), Pod)
        cluster.known["ns", name] = cluster.told["ns", name] = found


def asked(container: str) -> dict[str, Any]:
    limits = {"aliyun.com/gpu-mem": "300"}
    return {
        "metadata": {
            "name": container,
            "namespace": "ns",
            "uid": f"u-{container}",
            "resourceVersion": "1",
        },
        "spec": {"containers": [{"name": container, "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def nodes(cluster: StubCluster, container: str) -> list[str]:
    names = [one.name for one in cluster.engine.ledger.table.nodes]
    reply = Extender(cluster).filter(ROUTE, args(asked(container), names))
    found = json.loads(reply.body)
    assert found["Error"] == ""
    return list(found["NodeNames"] or [])


def check_the_pairs(table: dict[str, dict[str, float]]) -> None:
    cluster = world({"a": "LAMMPS", "b": "QMCPACK"}, table)
    waits(cluster, "classification", "cnn")
    assert nodes(cluster, "classification") == ["a"]
    assert nodes(cluster, "cnn") == ["b"], "LAMMPS is left to classification"
    assert nodes(cluster, "cnn") == ["b"], "a question changes nothing"


def test_two_wait_and_two_run() -> None:
    check_the_pairs(SMALL)


@pytest.mark.data
@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"no {PUBLISHED}")
def test_two_wait_and_two_run_by_the_published_table() -> None:
    check_the_pairs(json.loads(PUBLISHED.read_text()))


def test_an_empty_node_is_the_only_answer() -> None:
    cluster = world({"a": "LAMMPS", "b": "", "c": ""}, SMALL)
    assert nodes(cluster, "cnn") == ["b"]


def test_alone_it_has_its_cheapest() -> None:
    cluster = world({"a": "LAMMPS", "b": "QMCPACK"}, SMALL)
    assert nodes(cluster, "cnn") == ["a"]


def test_no_node_where_another_suits_better() -> None:
    cluster = world({"a": "LAMMPS"}, SMALL)
    waits(cluster, "classification", "cnn")
    assert nodes(cluster, "cnn") == []


@pytest.mark.parametrize(("profile", "left_to_it"), [("coscheml", True), ("beside", False)])
def test_a_node_is_left_to_a_pod_in_the_queue_only_where_the_same_policy_decides(
    profile: str, left_to_it: bool
) -> None:
    """As between two pods in the queue: another profile's goes where that one wants, or nowhere."""
    cluster = world({"a": "LAMMPS"}, SMALL)
    cluster.engine.profiles["beside"] = Profile("beside", [built_in().create("best-fit")])
    waits(cluster, "classification", "cnn")
    other = cluster.parse(cluster.known["ns", "classification"])
    kept_off = replace(other.shape, cpu_milli=1 << 40)
    cluster.handle(PodAdded(replace(other, shape=kept_off, scheduler_name=profile)))
    assert nodes(cluster, "cnn") == ([] if left_to_it else ["a"])
    assert nodes(cluster, "classification") == ["a"]


async def test_bind_books_where_kube_scheduler_says_whoever_waits() -> None:
    cluster = world({"a": "LAMMPS", "b": "QMCPACK"}, SMALL)
    waits(cluster, "classification", "cnn")
    reply = await Extender(cluster).bind(ROUTE, bind_args("cnn", "a"))
    assert json.loads(reply.body)["Error"] == ""
    assert cluster.bound[0].placement.node == "a"
    assert cluster.bound[0].placement.application == "CNN"
    reply = await Extender(cluster).bind(ROUTE, bind_args("classification", "a"))
    assert TEXT[Code.POLICY] in json.loads(reply.body)["Error"], "two pods are there"
