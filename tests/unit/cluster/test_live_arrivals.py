"""Pods that come back from their binding as it was decided here are not read a second time."""

from typing import Any

import msgspec
import pytest

from fakes.api_clock import VirtualClock
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import PodAdded, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.dialects.shares import encode
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added
from weft.model import Placement, PodMarks, Share
from weft.model.annotations import PLACEMENT
from weft.testing import AGENT_BY_NAME

GPUS = '{"gpus":[{"index":0,"memory_mib":16000},{"index":1,"memory_mib":16000}]}'
# Less CPU than the pod asks: a pod that is read anew can be told from one that is not.
DECIDED = Placement("u", "n", (Share(0, 1, 4000, 0),), cpu_milli=1, memory_mib=0)


def pod(cpu: str = "2", marks: dict[str, str] | None = None, **spec: Any) -> Pod:
    asks = {"limits": {"weft.dev/gpu-memory": 4000, "cpu": cpu}}
    return msgspec.convert(
        {
            "metadata": {"name": "a", "namespace": "d", "uid": "u", "annotations": marks},
            "spec": {
                "schedulerName": "weft",
                "containers": [{"name": "c", "resources": asks}],
                **spec,
            },
        },
        Pod,
    )


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(())


@pytest.fixture
def view(ledger: Ledger) -> PodView:
    nodes = NodeView()
    for name in ("n", "m"):
        node = {
            "metadata": {
                "name": name,
                "annotations": {"weft.dev/inventory": GPUS, **AGENT_BY_NAME},
            }
        }
        nodes.take_node(Added(msgspec.convert(node, KubeNode)))
    nodes.changed()
    found = PodView(
        ["weft"],
        nodes,
        VolumeView(),
        ledger,
        DialectSettings(gpushare_unit="node"),
        on_bad=lambda pod, why: None,
        clock=VirtualClock(),
    )
    found.deciding = True
    assert isinstance(found.update(pod()), PodAdded)
    ledger.adopt(DECIDED)
    return found


def marks(placement: Placement = DECIDED) -> dict[str, str]:
    return {PLACEMENT: encode(placement)}


def test_as_decided(view: PodView) -> None:
    bound = pod(marks=marks(), nodeName="n")
    assert view.update(bound) == PodSeenBound(DECIDED, marks=PodMarks("d"))
    assert view.update(bound) is not None  # read after all, when it is looked at once more
    assert view.on_node("n") == [bound]


@pytest.mark.parametrize(
    "bound",
    [
        pod("3", marks(), nodeName="n"),
        pod(marks=marks(msgspec.structs.replace(DECIDED, node="m")), nodeName="m"),
        pod(
            marks=marks(msgspec.structs.replace(DECIDED, shares=(Share(0, 0, 4000, 0),))),
            nodeName="n",
        ),
        pod(nodeName="n"),
        pod(marks={**marks(), "weft.dev/application": "b"}, nodeName="n"),
    ],
    ids=["it asks for more", "another node", "another card", "no marks", "it says another thing"],
)
def test_otherwise_it_is_read(view: PodView, bound: Pod) -> None:
    seen = view.update(bound)
    assert isinstance(seen, PodSeenBound)
    assert seen.placement.cpu_milli > DECIDED.cpu_milli
    assert seen.placement.node == bound.spec.node_name


def test_who_was_edited_while_it_was_bound_is_read(view: PodView) -> None:
    edit = {"weft.dev/class": "latency-critical", "weft.dev/slo-ms": "41"}
    edit["weft.dev/solo-p99-ms"] = "40"
    view.update(pod(marks=edit))
    seen = view.update(pod(marks=marks() | edit, nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert (seen.placement.job_class, seen.placement.slowdown_limit) == (
        "latency-critical",
        (("", 102),),
    )


def test_a_decision_that_was_given_up_does_not_count(view: PodView, ledger: Ledger) -> None:
    ledger.release("u")
    seen = view.update(pod(marks=marks(), nodeName="n"))
    assert isinstance(seen, PodSeenBound)
    assert seen.placement.cpu_milli == 2000
