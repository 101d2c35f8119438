"""Nobody starves: stories without end, in each of which every pod that an empty cluster could take
starts within a time that is worked out from the story.

As many pods wait at any time as at the beginning: where one gets its place, another comes. Pods of
several GPUs, of whole GPUs, of shares, of CPU and groups are among them, and such as fit nowhere
even in an empty cluster. First fit makes no promise: it is the mutant that has to be caught.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from event_story import POLICIES, SECOND, EventStory
from long_form import few_or_many
from msgspec.structs import replace
from ways import seeds

from weft.core.engine import Bind, Engine, PodAdded, PodGone
from weft.core.engine.kept_places import OTHERS_WAIT, KeptPlaces
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import FirstFit
from weft.core.policies.queue import DISCIPLINES
from weft.core.policies.queue.discipline import SLIPS
from weft.core.policies.queue.easy import EasyBackfill
from weft.core.policies.queue.first_fit import WhoeverFits
from weft.core.policies.queue.shortest import OVERTAKES, UNKNOWN_NS
from weft.model import Gang, PodRequest
from weft.model.queue_rules import Discipline, HeadOfLine
from weft.testing import node, pod

KEEPS: tuple[Discipline, ...] = ("reserve", "easy", "conservative", "shortest", "lend")
LIVES_S = (16, 64, 256, 512)
LIES = (250, 1_000, 1_000, 2_000, 4_000)
LONGEST_NS = max(LIVES_S) * max(LIES) // 1_000 * SECOND
AFTER_NS, FOREVER_NS = 60 * SECOND, 10**6 * SECOND
LENT_NS = 3 * LONGEST_NS
"""For so long `lend` keeps a place: in the second half all that run there end."""
BACKOFF_NS = 15 * SECOND
CPU_MILLI = 16_000
STORIES = few_or_many(8, 250)
"""So many of each discipline."""


@dataclass
class Unit:
    """A pod, or the pods of a group. `number` is the place in the order in which they came."""

    pods: list[PodRequest]
    came_ns: int
    number: int
    fits: bool
    is_large: bool
    started_ns: int | None = None

    def goes_before(self, other: "Unit") -> bool:
        """True if it may take what is kept for the other one."""
        mine, its = self.pods[0].priority, other.pods[0].priority
        return mine > its or (mine == its and self.number < other.number)


class Story(EventStory):
    """A small cluster, and pods that come to it without end."""

    def __init__(self, seed: int, discipline: Discipline) -> None:
        self.draw, self.discipline = Random(seed), discipline
        draw = self.draw
        gpus = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
        nodes = [
            node(f"n{at}", gpus=count, cpu_milli=CPU_MILLI * draw.choice([1, 2]))
            for at, count in enumerate(gpus)
        ]
        self.rules = HeadOfLine(
            AFTER_NS, self.kept_ns(), AFTER_NS, draw.randint(1, 3), discipline=discipline
        )
        self.engine = Engine(
            [Profile("weft", [draw.choice(POLICIES)()])], nodes, head_of_line=self.rules
        )
        self.empty = Engine([Profile("weft", [FirstFit()])], nodes)
        self.most_gpus = max(gpus)
        self.says, self.lies = draw.random() < 0.7, draw.random() < 0.5
        self.small = draw.sample(["tenth", "half", "gpu", "cpu"], draw.randint(1, 3))
        self.units: list[Unit] = []
        self.of: dict[str, Unit] = {}
        self.runs_s: dict[str, int] = {}
        self.bound: set[str] = set()
        self.begin()
        for _ in range(sum(gpus) * draw.choice([1, 2, 4])):
            self.another()
        self.to_come = sorted(draw.randint(1, 1_200) * SECOND for _ in range(draw.randint(1, 5)))

    def kept_ns(self) -> int:
        return LENT_NS if self.discipline == "lend" else FOREVER_NS

    # --- what comes ---

    def another(self) -> None:
        """One more small pod."""
        self.comes([self.asks(self.draw.choice(self.small))], is_large=False)

    def large_one(self) -> None:
        """One that small ones keep waiting; some fit nowhere."""
        draw, name = self.draw, f"g{next(self.names)}"
        kind = draw.choice(["several", "several", "group", "gpu", "half", "cpu", "never"])
        priority = draw.choice([0, 0, 0, 1])
        if kind == "group":
            size, each = draw.randint(2, 4), draw.choice(["half", "gpu", "several"])
            gang = Gang("kubernetes", "team", name, least=size, created_ns=self.now_ns)
            members = [self.asks(each, priority) for _ in range(size)]
            self.comes([replace(one, gang=gang) for one in members], is_large=True)
        else:
            self.comes([self.asks(kind, priority)], is_large=True)

    def asks(self, kind: str, priority: int = 0) -> PodRequest:
        draw, name = self.draw, f"p{next(self.names)}"
        if kind == "cpu":
            one = pod(name, cpu_milli=CPU_MILLI)
        elif kind in {"tenth", "half"}:
            one = pod(name, milli=100 if kind == "tenth" else 500, cpu_milli=100)
        else:
            several = draw.randint(min(2, self.most_gpus), self.most_gpus)
            gpus = {"gpu": 1, "several": several}.get(kind, self.most_gpus + 1)
            one = pod(name, gpus=gpus, cpu_milli=100)
        runs_s = draw.choice(LIVES_S)
        says_s = runs_s if self.says and draw.random() < 0.8 else 0
        self.runs_s[name] = runs_s * draw.choice(LIES) // 1_000 if self.lies else runs_s
        shape = replace(one.shape, expected_s=says_s)
        return replace(one, shape=shape, priority=priority, created_ns=self.now_ns)

    def comes(self, pods: list[PodRequest], *, is_large: bool) -> None:
        unit = Unit(pods, self.now_ns, len(self.units), self.fits_in_empty(pods), is_large)
        self.units.append(unit)
        for one in pods:
            self.of[one.uid] = unit
            self.at(self.now_ns, PodAdded(one))

    def fits_in_empty(self, pods: list[PodRequest]) -> bool:
        """True if a cluster in which nothing runs gives them places."""
        placed = {
            command.pod.uid
            for one in pods
            for command in self.empty.handle(PodAdded(one), 0)
            if isinstance(command, Bind)
        }
        for one in pods:
            self.empty.handle(PodGone(one.uid), 0)
        return placed == {one.uid for one in pods}

    # --- what happens ---

    def run(self) -> None:
        """Until all large ones have started, or one has waited for longer than it may."""
        for count in itertools.count():
            if count % 64 == 0 and not self.to_come and not self.waits():
                break
            if self.to_come and (not self.heap or self.heap[0][0] >= self.to_come[0]):
                self.now_ns = self.to_come.pop(0)
                self.large_one()
                continue
            self.carry_out(self.engine.handle(self.next_event(), self.now_ns))
        assert audit(self.engine.ledger) == []

    def binds(self, one: PodRequest) -> None:
        unit = self.of[one.uid]
        self.bound.add(one.uid)
        self.ends(one, self.runs_s[one.uid])
        if all(each.uid in self.bound for each in unit.pods):
            unit.started_ns = self.now_ns
        if not unit.is_large:
            self.another()

    # --- what must hold ---

    def waits(self) -> bool:
        """True if a large one waits that fits, and none has waited for longer than it may."""
        waits = [u for u in self.units if u.is_large and u.fits and u.started_ns is None]
        return bool(waits) and not any(self.is_late(unit) for unit in waits)

    def most_ns(self, unit: Unit) -> int:
        """For so long the unit may wait: each of those that go before it, and had not started when
        it came, has its turn in the worst case, one after another."""
        before = sum(
            other.fits
            and other.goes_before(unit)
            and (other.started_ns is None or other.started_ns > unit.came_ns)
            for other in self.units
        )
        return (before + 1) * self.turn_ns() + self.overtaken_ns()

    def turn_ns(self) -> int:
        """From when one is first of all that wait until it starts."""
        kept_ns = AFTER_NS * OTHERS_WAIT + BACKOFF_NS
        if self.discipline in {"easy", "conservative"}:
            return kept_ns + 2 * (SLIPS + 1) * LONGEST_NS
        return kept_ns + (LENT_NS if self.discipline == "lend" else 2 * LONGEST_NS)

    def overtaken_ns(self) -> int:
        longest_ns = max(UNKNOWN_NS, LONGEST_NS)
        return OVERTAKES * longest_ns if self.discipline == "shortest" else 0

    def late(self) -> Unit | None:
        """One that waited, or waits, for longer than it may."""
        return next((unit for unit in self.units if self.is_late(unit)), None)

    def is_late(self, unit: Unit) -> bool:
        until_ns = self.now_ns if unit.started_ns is None else unit.started_ns
        waited_ns = until_ns - unit.came_ns
        if not unit.fits or waited_ns <= self.turn_ns():
            return False
        return waited_ns > self.most_ns(unit)


def first_late(discipline: Discipline, seeds: Iterable[int]) -> str:
    """The first pod that waits for longer than it may; "" for none."""
    for seed in seeds:
        story = Story(seed, discipline)
        story.run()
        if late := story.late():
            most_s = story.most_ns(late) / SECOND
            return f"seed {seed}: {late.pods[0].uid} waits for more than {most_s:,} s"
    return ""


@pytest.mark.parametrize("discipline", KEEPS)
def test_every_pod_that_fits_starts_in_time(discipline: Discipline) -> None:
    assert not first_late(discipline, seeds(STORIES, first=1_000 * KEEPS.index(discipline)))


# --- mistakes that have to be caught ---


def a_discipline_that_never_keeps_a_place(patch: pytest.MonkeyPatch) -> None:
    for name in KEEPS:
        patch.setitem(DISCIPLINES, name, WhoeverFits())


def small_pods_have_no_turn(patch: pytest.MonkeyPatch) -> None:
    rightly = KeptPlaces._after_ns

    def after_ns(self: KeptPlaces, pod: PodRequest, members: Any) -> int:
        return rightly(self, pod, members) if members is not None or pod.shape.gpus > 1 else 0

    patch.setattr(KeptPlaces, "_after_ns", after_ns)


def who_comes_later_may_take_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EasyBackfill, "may_pass", lambda *_: True)


def places_are_lent_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeptPlaces, "lent", lambda self, turns, now_ns: [*turns] if self.lends else [])


@pytest.mark.parametrize(
    ("mutant", "discipline"),
    [
        (a_discipline_that_never_keeps_a_place, "reserve"),
        (a_discipline_that_never_keeps_a_place, "easy"),
        (small_pods_have_no_turn, "reserve"),
        (who_comes_later_may_take_what_is_kept, "easy"),
        (places_are_lent_for_ever, "lend"),
    ],
)
def test_these_stories_catch(
    mutant: Callable[[pytest.MonkeyPatch], None],
    discipline: Discipline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    assert first_late(discipline, (1, 5))
