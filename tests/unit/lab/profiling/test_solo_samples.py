"""Pods that were alone, and their applications: arithmetic on answers as a metrics server gives
them."""

import json

import numpy as np
import pytest

from weft.dialects.application import ApplicationClues, image_name
from weft.lab.profiling.history import clues_of
from weft.lab.profiling.solo_samples import NOBODY_KNOWS, SeenGpus, TimeGrid, alone, windows
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import QueryResult

GRID = TimeGrid(1_000.0, 10.0, 12)
SM, USED = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_FB_USED"
EXPORTER = {"pod": "dcgm-1", "namespace": "monitoring", "container": "exporter"}


def series(name: str, slots: range, value: float = 0.5, **labels: str) -> QueryResult:
    told = {
        "__name__": name,
        "UUID": "GPU-1",
        "gpu": "0",
        "Hostname": "a",
        "modelName": "NVIDIA T4",
        **labels,
    }
    times = np.array([GRID.start_s + GRID.step_s * slot for slot in slots])
    text = json.dumps(told, separators=(",", ":")).encode()
    return QueryResult([text], np.array([len(times)]), times, np.full(len(times), value))


def pod(name: str) -> dict[str, str]:
    return {"exported_pod": name, "exported_namespace": "d", "exported_container": "c"}


def seen(*answers: QueryResult) -> SeenGpus:
    found = SeenGpus(GRID)
    found.take(answers)
    return found


def slots_of(there: list[str], settle: int = 2) -> list[str]:
    table = np.array([[one == "x" for one in row] for row in there])
    return ["".join("x" if one else "." for one in row) for row in alone(table, settle)]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["xxxxxxxx"], ["..xxxxx."]),  # steady after two, and the last one may be half gone
        (["..xxxxx."], ["....xx.."]),
        (["xxxxxxxx", "....x..."], ["..xx....", "........"]),  # and alone again too shortly
        (["xxxx....", "....xxxx"], ["..x.....", "......x."]),
        (["x.x.x.x."], ["........"]),
    ],
)
def test_alone_is_alone_for_a_while_and_still_there(there: list[str], expected: list[str]) -> None:
    assert slots_of(there) == expected


def test_numbers_are_taken_while_a_pod_is_alone_and_not_before() -> None:
    found = windows(
        seen(series(SM, range(12), 0.9, **pod("p")), series(SM, range(6), 0.9, **pod("q"))), 2
    )
    (window,) = found
    assert (window.pod, window.card) == (("d", "p"), ("a", "GPU-1"))
    assert (window.slots, window.windows) == (3, 1)  # 6, 7 settle; the last slot may be its end
    assert window.values[Metric.SM_ACTIVE_RATIO].tolist() == [0.9] * 3


def test_the_exporters_own_pod_is_nobodys_company() -> None:
    """Prometheus labels each series with the exporter's pod where the GPU's is called exported_."""
    both = seen(series(SM, range(12), **EXPORTER), series(SM, range(12), **pod("p"), **EXPORTER))
    assert [one.pod for one in windows(both, 2)] == [("d", "p")]
    assert windows(seen(series(SM, range(12), **EXPORTER)), 2) == []
    plain = seen(series(SM, range(12), pod="p", namespace="d", container="c"))
    assert [one.pod for one in windows(plain, 2)] == [("d", "p")]


def test_no_memory_in_use_under_a_pod_is_no_measurement() -> None:
    found = seen(series(SM, range(12), **pod("p")), series(USED, range(12), 0.0, **pod("p")))
    assert windows(found, 2) == []


def test_who_starts_again_is_not_steady_at_once() -> None:
    """A restart empties the memory: what comes after it is loading, as at the start."""
    used = series(USED, range(12), 3_000.0, **pod("p"))
    used.values[5] = 3.0
    (window,) = windows(seen(series(SM, range(12), **pod("p")), used), 2)
    assert (window.slots, window.windows) == (2 + 3, 2)  # 2 and 3; 8 to 10: 6 and 7 settle
    assert window.values[Metric.MEMORY_USED_MIB].tolist() == [3_000.0] * 5


def test_a_binding_that_is_over_is_company_until_then() -> None:
    found = seen(series(SM, range(12), **pod("p")))
    found.bound(("a", "GPU-1"), ("d", "over"), 900.0, 1_030.0)
    (window,) = windows(found, 2)
    assert window.slots == 6  # 3 and 4 settle; 5 to 10


def test_a_binding_is_company_that_no_exporter_tells_of() -> None:
    found = seen(series(SM, range(12), **pod("p")))
    found.bound(("a", "GPU-1"), ("d", "unseen"), 1_060.0)
    (window,) = windows(found, 2)
    assert window.slots == 4  # slots 2 to 5


def test_more_holdings_than_pods_seen_are_not_believed() -> None:
    found = seen(series(SM, range(12), **pod("p")))
    found.distrust("a", np.array([1.0] * 8 + [2.0] * 3 + [np.nan]))
    (window,) = windows(found, 2)
    assert window.slots == 6
    assert NOBODY_KNOWS in found.pods["a", "GPU-1"]


def test_who_only_may_be_there_accounts_for_no_holding() -> None:
    """On GPU-2 somebody may still be; the holding that nobody was seen for may be beside p."""
    found = seen(series(SM, range(12), **pod("p")))
    found.bound(("a", "GPU-2"), NOBODY_KNOWS, 900.0)
    found.distrust("a", np.full(12, 2.0))
    assert windows(found, 2) == []


def test_mig_instances_are_left_out() -> None:
    assert windows(seen(series(SM, range(12), GPU_I_ID="1", **pod("p"))), 2) == []


# --- which application ---------------------------------------------------------------------------


def told(name: str, *many: dict[str, str]) -> dict[str, QueryResult]:
    texts = [json.dumps({"__name__": name, **labels}).encode() for labels in many]
    ones = np.ones(len(texts), dtype=np.int64)
    return {name: QueryResult(texts, ones, np.zeros(len(texts)), np.ones(len(texts)))}


P = {"namespace": "d", "pod": "web-5d8f-abcde"}


def test_the_annotation_is_believed_first_then_names_owners_images() -> None:
    annotated = told("kube_pod_annotations", {**P, "annotation_weft_dev_application": "bert"})
    info = told("kube_pod_container_info", {**P, "container": "google", "image": "r.io/x/train:1"})
    owner = told("kube_pod_owner", {**P, "owner_kind": "ReplicaSet", "owner_name": "web-5d8f"})
    deployed = {"namespace": "d", "replicaset": "web-5d8f"}
    above = told(
        "kube_replicaset_owner", {**deployed, "owner_kind": "Deployment", "owner_name": "web"}
    )
    key = ("d", "web-5d8f-abcde")

    def name(*answers: dict[str, QueryResult]) -> str:
        together = {name: answer for one in answers for name, answer in one.items()}
        return clues_of(together, {}).get(key, ApplicationClues()).name()

    assert name(annotated, info, owner, above) == "bert"
    assert name(info, owner, above) == "Googlenet"
    plain = told("kube_pod_container_info", {**P, "container": "c", "image": "r.io/x/train:1"})
    assert name(plain, owner, above) == "d/Deployment/web"
    assert name(plain, owner) == "d/ReplicaSet/web-5d8f"
    assert name(plain) == "train"
    assert name() == ""


def test_a_pod_without_an_owner_has_none() -> None:
    owner = told("kube_pod_owner", {**P, "owner_kind": "<none>", "owner_name": "<none>"})
    assert clues_of(owner, {("d", "web-5d8f-abcde"): "lammps"})[
        P["namespace"], P["pod"]
    ].name() == ("LAMMPS")


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("registry:5000/team/bert:v2", "bert"),
        ("bert@sha256:0123", "bert"),
        ("bert", "bert"),
        ("a/b/c:1@sha256:0", "c"),
        ("", ""),
    ],
)
def test_an_image_is_called_by_what_stays(image: str, name: str) -> None:
    assert image_name(image) == name
