"""Stories in which pods pass into places that are kept: where it is exactly known how long each
runs, nobody starts later than was said when the place was kept first, and nobody waits for ever.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from event_story import POLICIES, SECOND, EventStory, kept_for
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Command, Engine, NodesChanged, PodAdded
from weft.core.engine.kept_places import key_of
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.queue.shortest import OVERTAKES
from weft.core.record.file import DecisionLine, Header, PolicyUse, ProfileUse, Recorder, records_of
from weft.files.queue_settings import QueueingSettings
from weft.model import Gang, PodRequest
from weft.model.queue_rules import NOTHING_KEPT, Discipline, HeadOfLine
from weft.model.request import rounded_s
from weft.testing import node, pod

HOUR = 3_600 * SECOND
AFTER_NS = 300 * SECOND
LIVES_S = [16, 64, 256, 512, 1_024, 2_048]
"""On the grid on which durations lie: what is said is exact."""
AUDITED_EACH = few_or_many(10, 1)
"""After so many events the ledger is audited: with an audit after each, stories take three times
as long."""


def rules(discipline: Discipline, keep_for_ns: int = 100 * HOUR) -> HeadOfLine:
    return HeadOfLine(AFTER_NS, keep_for_ns, AFTER_NS, discipline=discipline)


@dataclass
class Story(EventStory):
    """A cluster where small pods wait at all times. Each runs for as long as its shape says, times
    `lies` in thousandths; one in four says nothing where some are `silent`."""

    nodes: list[int]
    seed: int
    rules: HeadOfLine
    head: list[PodRequest]
    silent: bool = False
    lies: tuple[int, ...] = (1_000,)
    now_ns: int = 0
    bound: dict[str, int] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)
    said_ns: int | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        policy = POLICIES[self.seed % len(POLICIES)]()
        nodes = [node(f"n{at}", gpus=gpus) for at, gpus in enumerate(self.nodes)]
        self.engine = Engine([Profile("weft", [policy])], head_of_line=self.rules)
        header = Header([ProfileUse("weft", [PolicyUse.of(policy)])], head_of_line=self.rules)
        self.lines: list[DecisionLine] = []
        self.policy, self.header = policy, header
        self.handle = Recorder(self.engine, header, self._write).handle
        self.begin()
        self.runs_s: dict[str, int] = {}
        self.at(0, NodesChanged(tuple(nodes)))
        for _ in range(sum(self.nodes)):
            self.another()
        for each in self.head:
            self.at(2 * SECOND, PodAdded(each))
        for _ in range(8):
            self.another(3 * SECOND)

    def _write(self, line: Header | DecisionLine) -> None:
        if isinstance(line, DecisionLine):
            self.lines.append(line)

    def another(self, at_ns: int | None = None) -> None:
        """One more small pod: as many wait at any time as run."""
        at_ns = self.now_ns if at_ns is None else at_ns
        said_s = self.random.choice(LIVES_S)
        assert rounded_s(said_s) == said_s
        one = pod(f"s{next(self.names)}", gpus=1)
        says = 0 if self.silent and self.random.random() < 0.25 else said_s
        one = replace(one, created_ns=at_ns + 1, shape=replace(one.shape, expected_s=says))
        self.runs_s[one.uid] = max(1, said_s * self.random.choice(self.lies) // 1_000)
        self.at(at_ns, PodAdded(one))

    def run(self, until_ns: int) -> bool:
        """True if the head has its places before then."""
        uids = {each.uid for each in self.head}
        while self.heap and self.heap[0][0] <= until_ns:
            event = self.next_event()
            self.carry_out(self.handle(event, self.now_ns))
            if isinstance(event, PodAdded):
                self.came.setdefault(event.pod.uid, self.now_ns)
            turn = self.engine.kept_places.turns.get(key_of(self.head[0])) if self.head else None
            if turn is not None and self.said_ns is None:
                self.said_ns = turn.reservation.starts_ns
            if uids <= self.bound.keys():
                return True
        return False

    def carry_out(self, commands: Iterable[Command]) -> None:
        if len(self.lines) % AUDITED_EACH == 0:  # what is wrong in the ledger stays so
            assert audit(self.engine.ledger) == []
        super().carry_out(commands)

    def binds(self, one: PodRequest) -> None:
        self.bound[one.uid] = self.now_ns
        if one not in self.head:
            self.ends(one, self.runs_s[one.uid])
            self.another(max(self.now_ns, 3 * SECOND))  # none came before the head but who runs


def gang(size: int, gpus: int) -> list[PodRequest]:
    group = Gang("kubernetes", "team", "train", least=size, created_ns=2 * SECOND)
    return [replace(pod(f"train-{n}", gpus=gpus), gang=group) for n in range(size)]


def heads(draw: st.DrawFn, nodes: list[int]) -> list[PodRequest]:
    """A gang, or a pod of several GPUs, that fits the empty cluster."""
    gpus = draw(st.integers(1, max(nodes)))
    size = draw(st.integers(1, sum(there // gpus for there in nodes)))
    if gpus > 1 and draw(st.booleans()):
        return [replace(pod("train-0", gpus=gpus), created_ns=2 * SECOND)]
    return gang(size, gpus)


CLUSTERS = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@settings(max_examples=few_or_many(10, 300), deadline=None)
@given(CLUSTERS, st.integers(0, 1 << 30), st.data())
def test_where_durations_are_exact_the_head_starts_as_was_said_first(
    nodes: list[int], seed: int, data: st.DataObject
) -> None:
    starts_as_said(Story(nodes, seed, rules("easy"), heads(data.draw, nodes)))


def starts_as_said(story: Story) -> None:
    assert story.run(10 * HOUR), story.engine.kept_places.counts
    if story.said_ns is not None:
        assert story.now_ns <= story.said_ns
    assert key_of(story.head[0]) not in kept_for(story.engine)


def test_when_the_head_starts_a_place_may_be_kept_for_a_small_pod() -> None:
    """A small pod that waits five times as long has a turn of its own: what is kept for it is not
    the head's."""
    story = Story([4], 42, rules("easy"), gang(3, gpus=1))
    starts_as_said(story)
    assert kept_for(story.engine) == ["s10"]


@settings(max_examples=few_or_many(8, 200), deadline=None)
@given(CLUSTERS, st.integers(0, 1 << 30), st.booleans(), st.data())
def test_where_durations_are_lies_or_unknown_the_head_still_starts(
    nodes: list[int], seed: int, silent: bool, data: st.DataObject
) -> None:
    """Each pod runs for up to four times as long as it says: those there when the place is kept,
    and those that pass until it has slipped twice."""
    lies = (250, 1_000, 2_000, 4_000)
    head = heads(data.draw, nodes)
    story = Story(nodes, seed, rules("easy"), head, silent=silent, lies=lies)
    longest_ns = 4 * max(LIVES_S) * SECOND
    assert story.run(AFTER_NS + 12 * longest_ns), story.engine.kept_places.counts


@settings(max_examples=few_or_many(6, 200), deadline=None)
@given(CLUSTERS, st.integers(0, 1 << 30), st.booleans())
def test_what_ships_decides_as_first_fit_where_no_group_waits(
    nodes: list[int], seed: int, silent: bool
) -> None:
    """Whatever pods say of how long they run: nothing is kept for single pods unless asked for."""

    def starts(kept: HeadOfLine) -> dict[str, int]:
        head = [replace(pod("train-0", gpus=max(nodes)), created_ns=2 * SECOND)]
        story = Story(nodes, seed, kept, head, silent=silent, lies=(250, 1_000, 4_000))
        story.run(HOUR)
        return story.bound

    assert starts(QueueingSettings().rules()) == starts(NOTHING_KEPT)


@settings(max_examples=few_or_many(6, 200), deadline=None)
@given(CLUSTERS, st.integers(0, 1 << 30), st.sampled_from(["easy", "shortest"]), st.data())
def test_a_replay_decides_alike(
    nodes: list[int], seed: int, discipline: Discipline, data: st.DataObject
) -> None:
    head = heads(data.draw, nodes)
    story = Story(nodes, seed, rules(discipline), head, silent=True, lies=(500, 1_000, 3_000))
    story.run(2 * HOUR)
    engine = story.header.engine(lambda *_, **__: type(story.policy)())
    for line in story.lines:
        assert records_of(engine.handle(line.event, line.at_ns)) == line.records


@settings(max_examples=few_or_many(3, 100), deadline=None)
@given(st.integers(1, 6), st.integers(0, 1 << 30))
def test_by_shortness_no_pod_waits_for_ever(gpus: int, seed: int) -> None:
    """Those that came before it, or while it may be overtaken, are at most as many as ran in that
    time and waited then."""
    story = Story([gpus], seed, rules("shortest"), [])
    story.head = [replace(pod("never", gpus=gpus + 1))]
    story.run(30 * HOUR)
    longest = OVERTAKES * max(LIVES_S) * SECOND
    late = {
        uid: story.bound.get(uid, story.now_ns) - came_ns for uid, came_ns in story.came.items()
    }
    backlog_ns = (8 + sum(story.nodes)) * max(LIVES_S) * SECOND
    assert max(late.values()) <= longest + backlog_ns
