"""A pod that ran out of GPU memory: its workload asks for more next time, then for a whole card."""

from weft.engine import (
    Bind,
    Command,
    Engine,
    Learnt,
    Lesson,
    LessonsTold,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    SignalsChanged,
)
from weft.framework import Policy, Profile
from weft.framework.signals import SignalsSnapshot
from weft.ledger import Limits
from weft.model import PodRequest, Share
from weft.testing import node, shape

CARD = 10_000


class Harvesting(Policy):
    """Any GPU, idle memory included."""

    name = "harvesting"
    harvests = True


def engine_of(gpus: int = 2) -> Engine:
    engine = Engine([Profile("weft", [Harvesting()])], limits=Limits(harvest_permille=2_000))
    engine.handle(NodesChanged((node("a", gpus=gpus, memory_mib=CARD),)), 0)
    return engine


def asking(uid: str, mib: int, workload: str = "job", created_ns: int = 0) -> PodRequest:
    return PodRequest(
        uid, uid, shape(memory_mib=mib), workload=workload, created_ns=created_ns
    )  # fmt: skip


def shares(commands: list[Command]) -> dict[str, tuple[Share, ...]]:
    return {c.pod.uid: c.placement.shares for c in commands if isinstance(c, Bind)}


def add(engine: Engine, pod: PodRequest) -> Share | None:
    """Where it is bound; None where it waits."""
    found = shares(engine.handle(PodAdded(pod), 1)).get(pod.uid)
    engine.handle(PodBound(pod.uid), 1)
    return found[0] if found else None


def out_of_memory(engine: Engine, uid: str, peak_mib: int = 0) -> list[tuple[str, Lesson]]:
    commands = engine.handle(PodGone(uid, out_of_memory=True, peak_mib=peak_mib), 2)
    return [(c.workload, c.lesson) for c in commands if isinstance(c, Learnt)]


def test_the_next_pod_of_the_workload_gets_a_quarter_more_than_was_asked_or_seen() -> None:
    engine = engine_of()
    assert (first := add(engine, asking("one", 2_000)))
    assert first.memory_mib == 2_000
    assert out_of_memory(engine, "one", peak_mib=2_401) == [("job", Lesson(1, 3_002))]
    assert (again := add(engine, asking("two", 2_000)))
    assert again.memory_mib == 3_002
    assert (larger := add(engine, asking("three", 4_000)))
    assert larger.memory_mib == 4_000
    assert (other := add(engine, asking("other", 2_000, workload="")))
    assert other.memory_mib == 2_000


def test_never_more_than_the_card() -> None:
    engine = engine_of()
    add(engine, asking("one", 9_000))
    assert out_of_memory(engine, "one") == [("job", Lesson(1, CARD))]
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
    engine.lessons.tell({"job": Lesson(1, 2_000)})
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
    engine.handle(LessonsTold({"job": Lesson(1, 5_000)}), 1)
    engine.handle(LessonsTold({"job": Lesson(0, 3_000)}), 1)
    assert engine.lessons.known == {"job": Lesson(1, 5_000)}
    assert (found := add(engine, asking("one", 2_000)))
    assert found.memory_mib == 5_000


def test_what_a_pod_asks_never_shrinks_by_a_lesson() -> None:
    engine = engine_of()
    engine.handle(LessonsTold({"job": Lesson(1, 1_000)}), 1)
    half = PodRequest("half", "half", shape(percent=50), workload="job")
    assert (found := add(engine, half))
    assert found.memory_mib == 5_000
