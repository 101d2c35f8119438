"""The metrics behind a decision, out of a decisions file: read off, and decided again without."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.core.engine import BindOn, Event, NodesChanged, PodAdded, PodBound, SignalsChanged
from weft.core.engine.harvest import NEED, USED
from weft.core.explain.explanation import Explanation
from weft.core.explain.renderer import lines_of
from weft.core.framework.signals import FRESH, STALE, snapshot
from weft.core.policies.catalog import built_in
from weft.core.record import (
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
)
from weft.testing import node, pod

CREATE = built_in().create
S = 10**9


def recorded(path: Path, policy: str, events: list[Event], harvest_permille: int = 1000) -> Path:
    header = Header([ProfileUse("weft", [PolicyUse(policy)])], harvest_permille=harvest_permille)
    with path.open("wb") as out:
        recorder = Recorder(header.engine(CREATE), header, DecisionsWriter(out).write)
        for number, event in enumerate(events):
            recorder.handle(event, number * S)
    return path


def look(version: int, sm: list[float], age: int = FRESH) -> SignalsChanged:
    """Readings of GPU 0 of nodes a and b."""
    ages = np.full(2, age, dtype=np.int8)
    columns = {
        "sm_active_ratio": (np.array(sm), ages),
        "dram_active_ratio": (np.array(sm), ages),
        "power_w": (np.array([61.0, 250.5]), np.full(2, FRESH, dtype=np.int8)),
    }
    return SignalsChanged(snapshot(version, 0, [("a", 0), ("b", 0)], columns))


NODES = NodesChanged((node("a", gpus=1), node("b", gpus=1)))


def told(path: Path, name: str) -> tuple[Explanation, str]:
    found = explain(path, name, CREATE)
    return found, "\n".join(lines_of(found))


def test_a_placed_pods_metrics_and_where_it_would_be_without(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "file",
        "load-aware",
        [
            NODES,
            look(1, [0.5, 0.125], STALE),
            PodAdded(pod("p", memory_mib=100)),
            PodBound("p"),
            look(2, [0.0, 0.9]),
        ],
    )
    found, text = told(path, "p")
    assert found.recorded.record.node == "b"
    assert "  metrics of GPU 0, read 2 s before the decision: sm_active_ratio 0.125 STALE, " in text
    assert "power_w 250 W" in text
    assert "  without metrics: a, GPU 0" in text
    again = msgspec.json.decode(msgspec.json.encode(found), type=Explanation)
    assert again.metrics == found.metrics
    assert again.metrics is not None
    assert "power_limit_w" in again.metrics.columns


def test_the_same_place_is_said_to_be_the_same(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "file",
        "load-aware",
        [
            NODES,
            look(1, [0.125, 0.5]),
            PodAdded(pod("p", memory_mib=100)),
        ],
    )
    assert "  without metrics: the same place" in told(path, "p")[1]


def test_a_pod_that_only_metrics_keep_waiting(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "file",
        "load-aware",
        [
            NODES,
            *(PodAdded(pod(f"there-{n}", memory_mib=9_000)) for n in range(2)),
            look(1, [0.91, 0.95]),
            PodAdded(pod("p", memory_mib=1_000)),
        ],
    )
    found, text = told(path, "p")
    assert found.recorded.record.outcome == "unschedulable"
    assert "  metrics keep it off 2 GPUs that would take it:" in text
    assert "    - a GPU 0: sm_active_ratio 0.91, dram_active_ratio 0.91, power_w 61 W" in text
    assert "  without metrics: a, GPU 0" in text
    large = recorded(
        tmp_path / "large",
        "load-aware",
        [
            NODES,
            look(1, [0.91, 0.95]),
            PodAdded(pod("p", memory_mib=100_000)),
        ],
    )
    assert "  without metrics: nowhere either" in told(large, "p")[1]


def test_a_node_that_kube_scheduler_chose_is_not_chosen_again(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "file",
        "load-aware",
        [
            NODES,
            look(1, [0.125, 0.5]),
            BindOn(pod("p", memory_mib=100), "b", "weft"),
        ],
    )
    found, text = told(path, "p")
    assert found.recorded.record.node == "b"
    assert "  without metrics: the same place" in text


def test_who_borrows_would_be_nowhere_without_metrics_and_why_it_goes(tmp_path: Path) -> None:
    def lent(version: int, idle_mib: int) -> SignalsChanged:
        one = np.array([FRESH], dtype=np.int8)
        columns = {
            "memory_used_mib": (np.array([1_000.0]), one),
            USED: (np.array([1_000.0]), one),
            NEED: (np.array([16_000.0 - idle_mib]), one),
        }
        return SignalsChanged(
            snapshot(version, 0, [("a", 0)], columns, idle_mib={"lender": (idle_mib,)})
        )

    path = recorded(
        tmp_path / "file",
        "auto",
        [
            NodesChanged((node("a", gpus=1, memory_mib=16_384),)),
            PodAdded(pod("lender", memory_mib=15_000)),
            PodBound("lender"),
            lent(1, 12_000),
            PodAdded(pod("borrower", memory_mib=8_000)),
            PodBound("borrower"),
            lent(2, 2_000),
        ],
        harvest_permille=1_500,
    )
    found, text = told(path, "borrower")
    assert found.recorded.record.outcome == "asked-to-leave"
    assert "  metrics of GPU 0, read 6 s before the decision: memory_need_mib 14,000 MiB, " in text
    assert "without metrics" not in text
    early = recorded(
        tmp_path / "early",
        "auto",
        [
            NodesChanged((node("a", gpus=1, memory_mib=16_384),)),
            PodAdded(pod("lender", memory_mib=15_000)),
            PodBound("lender"),
            lent(1, 12_000),
            PodAdded(pod("borrower", memory_mib=8_000)),
        ],
        harvest_permille=1_500,
    )
    text = told(early, "borrower")[1]
    assert "harvested " in text
    assert "of lender" in text
    assert "  without metrics: nowhere" in text


@pytest.mark.parametrize("policy", ["best-fit", "load-aware"])
def test_without_metrics_there_is_nothing_to_tell(tmp_path: Path, policy: str) -> None:
    events: list[Event] = [NODES, PodAdded(pod("p", memory_mib=100))]
    if policy == "best-fit":
        events.insert(1, look(1, [0.1, 0.2]))
    found, text = told(recorded(tmp_path / "file", policy, events), "p")
    assert found.metrics is None
    assert "metrics" not in text
