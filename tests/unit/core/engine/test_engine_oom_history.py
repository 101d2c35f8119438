"""A pod that ran out of GPU memory: its workload asks for more next time, then for a whole card."""

from fakes.harvesting import Harvesting
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Learnt,
    NodesChanged,
    OomHistoryLearnt,
    OomRecord,
    OutOfMemory,
    PodAdded,
    PodBound,
    PodGone,
    SignalsChanged,
)
from weft.core.engine.oom_history import ALONE_AFTER, MOST, OomCharge
from weft.core.explain.sentences import charged_in_words
from weft.core.framework import Profile
from weft.core.framework.signals import SignalsSnapshot
from weft.core.ledger import RequestLimits
from weft.model import PodRequest, Share
from weft.testing import node, placement, shape

CARD = 10_000


def engine_of(gpus: int = 2) -> Engine:
    engine = Engine([Profile("weft", [Harvesting()])], limits=RequestLimits(harvest_permille=2_000))
    engine.handle(NodesChanged((node("a", gpus=gpus, memory_mib=CARD),)), 0)
    return engine


def asking(uid: str, mib: int, workload: str = "job", created_ns: int = 0) -> PodRequest:
    return PodRequest(uid, uid, shape(memory_mib=mib), workload=workload, created_ns=created_ns)


def shares(commands: list[Command]) -> dict[str, tuple[Share, ...]]:
    return {c.pod.uid: c.placement.shares for c in commands if isinstance(c, Bind)}


def add(engine: Engine, pod: PodRequest) -> Share | None:
    """Where it is bound; None where it waits."""
    found = shares(engine.handle(PodAdded(pod), 1)).get(pod.uid)
    engine.handle(PodBound(pod.uid), 1)
    return found[0] if found else None


def out_of_memory(engine: Engine, uid: str, peak_mib: int = 0) -> list[tuple[str, OomRecord]]:
    commands = engine.handle(PodGone(uid, out_of_memory=True, peak_mib=peak_mib), 2)
    return [(c.workload, c.oom_record) for c in commands if isinstance(c, Learnt)]


def test_the_next_pod_of_the_workload_gets_a_quarter_more_than_was_asked_or_seen() -> None:
    engine = engine_of()
    assert (first := add(engine, asking("one", 2_000)))
    assert first.memory_mib == 2_000
    assert out_of_memory(engine, "one", peak_mib=2_401) == [("job", OomRecord(1, 3_002, ("one",)))]
    assert (again := add(engine, asking("two", 2_000)))
    assert again.memory_mib == 3_002
    assert (larger := add(engine, asking("three", 4_000)))
    assert larger.memory_mib == 4_000
    assert (other := add(engine, asking("other", 2_000, workload="")))
    assert other.memory_mib == 2_000


def test_never_more_than_the_card() -> None:
    engine = engine_of()
    add(engine, asking("one", 9_000))
    assert out_of_memory(engine, "one") == [("job", OomRecord(1, CARD, ("one",)))]
    engine.handle(PodGone("x"), 3)


def test_the_second_time_it_gets_a_card_of_its_own() -> None:
    engine = engine_of(gpus=2)
    assert add(engine, asking("beside", 100, workload=""))
    for uid in ("one", "two"):
        assert add(engine, asking(uid, 2_000))
        out_of_memory(engine, uid)
    assert (alone := add(engine, asking("three", 2_000)))
    assert (alone.gpu, alone.memory_mib, alone.milli) == (1, CARD, 1_000)
    assert add(engine, asking("four", 2_000)) is None  # GPU 0 has a pod


def test_it_never_borrows_again() -> None:
    engine = engine_of(gpus=1)
    engine.oom_history.merge({"job": OomRecord(1, 2_000)})
    add(engine, asking("lender", 9_000, workload=""))
    engine.handle(SignalsChanged(SignalsSnapshot(1, 0, idle_mib={"lender": (6_000,)})), 1)
    assert add(engine, asking("careful", 1_500)) is None
    assert add(engine, asking("careless", 1_500, workload=""))


def test_the_one_that_replaces_it_goes_first() -> None:
    engine = engine_of(gpus=1)
    add(engine, asking("one", 6_000))
    assert add(engine, asking("waits", 7_000, workload="other", created_ns=1)) is None
    out_of_memory(engine, "one")  # 7,500 MiB from now on
    engine.handle(PodGone("waits"), 3)
    busy = asking("busy", 9_000, workload="", created_ns=2)
    assert add(engine, busy)
    assert add(engine, asking("earlier", 7_000, workload="other", created_ns=3)) is None
    assert add(engine, asking("replaces", 6_000, created_ns=4)) is None
    assert list(shares(engine.handle(PodGone("busy"), 10**11))) == ["replaces"]


def test_lessons_of_another_process_count_and_only_grow() -> None:
    engine = engine_of()
    engine.handle(OomHistoryLearnt({"job": OomRecord(1, 5_000)}), 1)
    engine.handle(OomHistoryLearnt({"job": OomRecord(0, 3_000)}), 1)
    assert engine.oom_history.known == {"job": OomRecord(1, 5_000)}
    assert (found := add(engine, asking("one", 2_000)))
    assert found.memory_mib == 5_000


def test_what_a_pod_asks_never_shrinks_by_a_lesson() -> None:
    engine = engine_of()
    engine.handle(OomHistoryLearnt({"job": OomRecord(1, 1_000)}), 1)
    half = PodRequest("half", "half", shape(percent=50), workload="job")
    assert (found := add(engine, half))
    assert found.memory_mib == 5_000


def again(end: str, mib: int = 2_000, *, over: bool = False, peak_mib: int = 0) -> OutOfMemory:
    """A pod that runs on, or not, after this end."""
    return OutOfMemory(placement("one", "a", 0, memory_mib=mib), "job", end, peak_mib, over)


def learnt(engine: Engine, told: OutOfMemory) -> list[OomRecord]:
    return [c.oom_record for c in engine.handle(told, 3) if isinstance(c, Learnt)]


def test_a_pod_that_goes_on_teaches_once_for_each_of_its_ends() -> None:
    engine = engine_of()
    assert add(engine, asking("one", 2_000))
    assert learnt(engine, again("one/1")) == [OomRecord(1, 2_500, ("one/1",))]
    assert learnt(engine, again("one/1")) == []
    assert "one" in engine.ledger.holdings
    assert learnt(engine, again("one/2")) == [OomRecord(2, 2_500, ("one/1", "one/2"))]
    assert learnt(engine, again("one/3")) == []  # alone already, and not larger
    assert learnt(engine, again("one/4", peak_mib=4_000)) == [
        OomRecord(2, 5_000, ("one/1", "one/2"))
    ]


def test_an_end_that_another_process_learnt_from_is_not_learnt_again() -> None:
    engine = engine_of()
    engine.handle(OomHistoryLearnt({"job": OomRecord(1, 2_500, ("one/1",))}), 1)
    assert learnt(engine, again("one/1", over=True)) == []
    assert engine.oom_history.known == {"job": OomRecord(1, 2_500, ("one/1",))}


def test_two_processes_that_each_learnt_from_another_end_know_of_two() -> None:
    one = OomRecord(1, 2_500, ("a",))
    assert one.joined(OomRecord(1, 2_000, ("b",))) == OomRecord(ALONE_AFTER, 2_500, ("a", "b"))
    assert one.joined(one) == one


def test_a_pod_that_goes_on_is_replaced_by_nobody() -> None:
    engine = engine_of(gpus=1)
    engine.handle(again("one/1"), 1)
    add(engine, asking("busy", 9_000, workload=""))
    assert add(engine, asking("earlier", 7_000, workload="other", created_ns=3)) is None
    assert add(engine, asking("later", 6_000, created_ns=4)) is None
    assert list(shares(engine.handle(PodGone("busy"), 10**11))) == ["earlier"]


def test_a_node_that_is_gone_sets_no_bound() -> None:
    engine = engine_of()
    told = OutOfMemory(placement("x", "gone", 0, memory_mib=CARD), "job", "x/1")
    assert learnt(engine, told) == [OomRecord(1, 12_500, ("x/1",))]


def test_the_workload_that_failed_least_recently_is_forgotten_beyond_so_many() -> None:
    engine = engine_of()
    engine.handle(OomHistoryLearnt({f"w{n}": OomRecord(1, 1) for n in range(MOST)}), 1)
    engine.handle(OomHistoryLearnt({"w0": OomRecord(2, 1)}), 1)
    engine.handle(again("x"), 1)
    assert len(engine.oom_history.known) == MOST
    assert "w1" not in engine.oom_history.known
    assert {"w0", "job"} <= engine.oom_history.known.keys()


def charged(engine: Engine, pod: PodRequest) -> OomCharge | None:
    (bind,) = [c for c in engine.handle(PodAdded(pod), 1) if isinstance(c, Bind)]
    return bind.record.charged


def test_the_record_says_what_a_lesson_and_not_the_request_charged() -> None:
    engine = engine_of(gpus=8)
    engine.handle(OomHistoryLearnt({"job": OomRecord(1, 2_500)}), 1)
    assert charged(engine, asking("less", 2_000)) == OomCharge("job", 1, 2_500)
    assert charged(engine, asking("more", 2_500)) is None
    assert charged(engine, asking("other", 2_000, workload="other")) is None
    engine.handle(OomHistoryLearnt({"job": OomRecord(2, 2_500)}), 1)
    assert charged(engine, asking("alone", 3_000)) == OomCharge("job", 2, 2_500)
    whole = PodRequest("whole", "whole", shape(gpus=1), workload="job")
    assert charged(engine, whole) is None


def test_what_was_charged_in_words() -> None:
    assert charged_in_words(OomCharge("ml/Job/a", 1, 9_000)) == (
        "charged 9,000 MiB of a GPU or more, and it never borrows: 1.25 × what ml/Job/a had or "
        "used when it ran out of GPU memory"
    )
    assert charged_in_words(OomCharge("ml/Job/a", 2, 9_000)) == (
        "charged GPUs of its own, of 9,000 MiB or more: ml/Job/a ran out of GPU memory 2 times "
        "or more"
    )
