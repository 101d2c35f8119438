"""A recorded day under other policies: the same one decides the same, and others meet the same."""

from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from traces import in_order, scenario, trace_pod

from weft.core.engine import Event, NodesChanged, PodAdded, PodBound, PodGone, PodSeenBound
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import BestFit, FirstFit
from weft.core.policies.spreading import Random
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder
from weft.core.record.reading import skim
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.recorded_day import read_day, summary
from weft.lab.simulate.timed import run_timed
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, Placement, Shape, Share
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, pod

SECOND = 10**9
PODS = [
    trace_pod(f"p{i}", *((1, 500), (1, 1000), (2, 1000))[i % 3], times=(i, i + 5 + i % 7, i))
    for i in range(60)
]
CLUSTER = (node("a", gpus=2), node("b", gpus=2))


def decided(path: Path) -> list[tuple[object, ...]]:
    return [
        (record.name, record.outcome, record.node, record.shares, record.attempt)
        for line in skim(path)[1]
        for record in line.records
    ]


@pytest.mark.parametrize("policy", [FirstFit, Random])
def test_a_simulated_day_under_its_own_policy_comes_out_the_same(
    policy: type, tmp_path: Path
) -> None:
    world, first, again = scenario(PODS, *CLUSTER), tmp_path / "day", tmp_path / "again"
    with first.open("wb") as file:
        run = run_timed(
            world, policy(), in_order(world, 7), timing=False, decisions=DecisionsWriter(file)
        )
    day = read_day(first)
    assert day.scenario.nodes == [
        msgspec.structs.replace(n, rank=rank) for rank, n in enumerate(CLUSTER)
    ]
    with again.open("wb") as file:
        rerun = run_timed(
            day.scenario, policy(), day.arrivals, timing=False, decisions=DecisionsWriter(file)
        )
    assert decided(again) == decided(first)
    assert rerun.waits == run.waits
    assert rerun.failed_pods == run.failed_pods
    other = run_timed(world, BestFit(), in_order(world, 7), timing=False)
    assert run_timed(day.scenario, BestFit(), day.arrivals, timing=False).waits == other.waits


def test_a_day_with_queues_and_preemption_comes_out_the_same(tmp_path: Path) -> None:
    """Its queues are those of the record, and pods end others as then; a pod that was ended, and
    came anew, has all its work to do again."""
    pods = [
        msgspec.structs.replace(each, priority=9 * (i % 7 == 0), listed_queue="ab"[i % 2])
        for i, each in enumerate(PODS)
    ]
    promised = QueueTerms("b", guarantee=QueueAmounts(gpu_milli=2_000))
    world = msgspec.structs.replace(
        scenario(pods, *CLUSTER), queues=QueueRules("fair", (promised,), reclaim=True), grace_ns=0
    )
    first = tmp_path / "day"
    with first.open("wb") as file:
        run = run_timed(
            world, FirstFit(), in_order(world, 7), timing=False, decisions=DecisionsWriter(file)
        )
    assert run.preemption is not UNSET
    assert run.preemption.preempted > 3
    day = read_day(first)
    assert (day.scenario.queues, day.scenario.preempt) == (world.queues, True)
    rerun = run_timed(
        msgspec.structs.replace(day.scenario, grace_ns=0), FirstFit(), day.arrivals, timing=False
    )
    assert (rerun.waits, rerun.preemption) == (run.waits, run.preemption)
    assert rerun.queues == run.queues


def test_pods_that_other_schedulers_placed_are_ended_by_nobody(tmp_path: Path) -> None:
    held = Placement("other", "n", (Share(0, 0, 16_000, 1_000),))
    header = Header([ProfileUse("weft", [PolicyUse("first-fit")], preempts=True)])
    with (tmp_path / "day").open("wb") as file:
        recorder = Recorder(header.engine(built_in().create), header, DecisionsWriter(file).write)
        events: list[Event] = [
            NodesChanged((node("n", gpus=1),)),
            PodSeenBound(held, priority=0),
            PodAdded(pod("low", gpus=1)),
            PodAdded(pod("urgent", gpus=1, priority=9)),
        ]
        for at, event in enumerate(events):
            recorder.handle(event, at * SECOND)
    day = read_day(tmp_path / "day")
    assert day.scenario.preempts
    run = run_timed(day.scenario, FirstFit(), day.arrivals, timing=False)
    assert run.failed_pods == 2
    assert run.preemption is not UNSET
    assert run.preemption.preempted == 0


def test_pods_that_found_no_place_and_were_withdrawn_are_again(tmp_path: Path) -> None:
    """FGD's experiment: nobody waits. What fits under the other policy stays."""
    world, path = scenario(PODS, *CLUSTER), tmp_path / "day"
    order = in_order(world, 3)
    with path.open("wb") as file:
        run_inflation(world, FirstFit(), order, decisions=DecisionsWriter(file))
    day = read_day(path)
    for policy in (FirstFit, BestFit):
        run = run_inflation(world, policy(), order, timing=False)
        again = run_timed(day.scenario, policy(), day.arrivals, timing=False)
        assert (again.failed_pods, again.used_gpu_milli) == (run.failed_pods, run.used_gpu_milli)


def recorded(path: Path, events: list[tuple[Event, float]]) -> Path:
    header = Header([ProfileUse("weft", [PolicyUse("best-fit")])], seed=5, overcommit_permille=1200)
    with path.open("wb") as file:
        writer = DecisionsWriter(file)
        recorder = Recorder(header.engine(built_in().create), header, writer.write)
        for event, at in events:
            recorder.handle(event, 77 * SECOND + round(at * SECOND))
        writer.close()
    return path


def held(uid: str, gpu: int) -> PodSeenBound:
    return PodSeenBound(Placement(uid, "a", (Share(0, gpu, 16_384, 1000),)))


def test_a_live_day_keeps_what_others_did_and_forgets_what_its_policy_did(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "day",
        [
            (NodesChanged((node("a", gpus=2),)), 0),
            (held("theirs", 0), 1),
            (PodAdded(pod("p", gpus=1)), 2),
            (PodBound("p"), 3),
            (PodSeenBound(Placement("p", "a", (Share(0, 1, 16_384, 1000),))), 3.5),
            (PodAdded(pod("q", gpus=1)), 4),
            (PodAdded(pod("gives-up", gpus=2)), 5),
            (PodGone("p"), 13),
            (PodBound("q"), 13),
            (PodGone("gives-up"), 14),
            (PodGone("theirs"), 20),
            (NodesChanged((node("b", gpus=1),)), 21),
            (PodGone("q"), 30.25),
        ],
    )
    day = read_day(path)
    assert (day.placed_by_others, day.nodes_changed) == (1, True)
    assert day.scenario.limits[:2] == (1200, 1000)
    assert [(p.name, p.created_s, p.scheduled_s, p.deleted_s) for p in day.scenario.pods] == [
        ("p", 2, 3, 13),
        ("q", 4, 13, 30.25),
        ("gives-up", 5, None, 14),
    ]
    run = run_timed(day.scenario, FirstFit(), day.arrivals, timing=False)
    assert run.waits is not None
    assert (run.waits.started, run.waits.never_started) == (2, 1)
    assert run.waits.max_s == 8.0, "q waits for p, which is placed at 2 and runs 10 s; theirs stays"
    assert run.waits.end_s == 12 + 17.25
    said = list(summary(day))
    assert said[0].startswith(
        "recorded: 3 pods on 1 nodes with 2 GPUs in 0.0 h, decided by weft: b"
    )
    assert said[1:] == [
        "1 pods placed by other schedulers stay where they were",
        "nodes were added or removed: percentages are of the GPUs at the start",
    ]


def test_a_file_whose_end_is_lost_is_run_and_said_to_be_that(tmp_path: Path) -> None:
    events: list[tuple[Event, float]] = [
        (NodesChanged(CLUSTER), 0),
        (PodAdded(pod("p", gpus=1)), 1),
    ]
    path = recorded(tmp_path / "day", events)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "without an end record" in list(summary(read_day(path)))[-1]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([(NodesChanged(CLUSTER), 0)], "has no pod that was pending: there is nothing to decide"),
        ([(PodAdded(pod("p", gpus=1)), 0)], "has no node before its first pod"),
    ],
)
def test_a_file_with_nothing_to_run_is_refused(
    events: list[tuple[Event, float]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=said):
        read_day(recorded(tmp_path / "day", events))


def test_cards_are_held_by_their_cores_or_their_memory_not_by_both() -> None:
    """One pod has half the cores, the other half the memory: of the card 600 thousandths."""
    half = GpuMemoryRequest("mib", 8_192)
    shapes = Shape((GpuRequest(1, milli=500),)), Shape((GpuRequest(1, half, 100),))
    pods = [TracePod(f"p{i}", shape, 1, 500, 0, 10, 0) for i, shape in enumerate(shapes)]
    world = scenario(pods, node("a", gpus=1, memory_mib=16_384))
    waits = run_timed(world, FirstFit(), in_order(world), timing=False).waits
    assert waits is not None
    assert waits.mean_held_percent == 60.0
