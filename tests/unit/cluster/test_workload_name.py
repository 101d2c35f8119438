"""A pod's workload is found by the names that its metadata shows."""

import msgspec
import pytest

from weft.cluster.state.pod_reader import workload_of
from weft.kube.pods import Pod

# 2026-01-31T08:00:00Z is minute 29,497,440 since 1970.
MADE, MINUTE = "2026-01-31T08:00:00Z", 29_497_440


def pod(*owners: dict[str, object], labels: dict[str, str] | None = None, **meta: object) -> Pod:
    told = {"name": "p", "namespace": "ml", "creationTimestamp": MADE, **meta}
    told |= {"ownerReferences": list(owners), "labels": labels or {}}
    return msgspec.convert({"metadata": told}, Pod)


def owner(kind: str, name: str, *, controller: bool = True) -> dict[str, object]:
    return {"apiVersion": "any/v1", "kind": kind, "name": name, "controller": controller}


HASH = {"pod-template-hash": "6f9c"}


@pytest.mark.parametrize(
    ("kind", "name", "labels", "workload"),
    [
        ("ReplicaSet", "web-6f9c", HASH, "ml/Deployment/web"),
        ("ReplicaSet", "web-6f9c", {}, "ml/ReplicaSet/web-6f9c"),
        ("ReplicaSet", "web-7777", HASH, "ml/ReplicaSet/web-7777"),
        ("ReplicaSet", "-6f9c", HASH, "ml/ReplicaSet/-6f9c"),
        ("StatefulSet", "db", {}, "ml/StatefulSet/db"),
        ("PyTorchJob", "train", {}, "ml/PyTorchJob/train"),
        ("Job", "train", {}, "ml/Job/train"),
        ("Job", f"nightly-{MINUTE}", {}, "ml/CronJob/nightly"),
        ("Job", f"nightly-{MINUTE - 24 * 60}", {}, "ml/CronJob/nightly"),
        ("Job", f"nightly-{MINUTE - 24 * 60 - 1}", {}, f"ml/Job/nightly-{MINUTE - 24 * 60 - 1}"),
        ("Job", f"nightly-{MINUTE + 1}", {}, f"ml/Job/nightly-{MINUTE + 1}"),
        ("Job", "train-20260131", {}, "ml/Job/train-20260131"),
        ("Node", "node-1", {}, ""),
    ],
)
def test_the_controlling_owner_and_what_made_it_where_names_tell(
    kind: str, name: str, labels: dict[str, str], workload: str
) -> None:
    assert workload_of(pod(owner(kind, name), labels=labels)) == workload


def test_only_the_owner_that_controls_counts() -> None:
    watches, makes = owner("Service", "s", controller=False), owner("Job", "a")
    assert workload_of(pod(watches, makes)) == "ml/Job/a"
    assert workload_of(pod(watches)) == ""


def test_a_bare_pod_is_its_applications_or_nobodys() -> None:
    assert workload_of(pod()) == ""
    named = {"weft.dev/application": "resnet"}
    assert workload_of(pod(annotations=named)) == "ml/application/resnet"
    assert workload_of(pod(owner("Job", "a"), annotations=named)) == "ml/Job/a"


@pytest.mark.parametrize("name", ["", "a" * 254, "a\nb"])
def test_what_is_no_name_of_an_application_is_none(name: str) -> None:
    assert workload_of(pod(annotations={"weft.dev/application": name})) == ""


def test_a_time_that_cannot_be_read_makes_no_cron_job() -> None:
    made = pod(owner("Job", f"nightly-{MINUTE}"), creationTimestamp="some day")
    assert workload_of(made) == f"ml/Job/nightly-{MINUTE}"
