"""Stories of a large gang, or pod, among an endless stream of small pods: where its place is kept
it starts within a time that is known, whoever comes; without it the stream keeps it waiting.
"""

import itertools
from dataclasses import dataclass, field

from event_story import POLICIES, SECOND, EventStory, kept_for
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Engine, NodesChanged, PodAdded, PodGone
from weft.core.engine.kept_places import key_of
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.model import Gang, PodRequest
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine
from weft.testing import node, pod

MINUTE = 60 * SECOND
AFTER_NS, KEEP_NS = 5 * MINUTE, 30 * MINUTE
RULES = HeadOfLine(AFTER_NS, KEEP_NS, pods_after_ns=AFTER_NS)
LONGEST_S = 600
BOUND_NS = AFTER_NS + 2 * LONGEST_S * SECOND + 2 * MINUTE
"""Until its place is kept; until all that ran there then, and older pods that waited, are over; and
back-offs."""


@dataclass
class Story(EventStory):
    """A cluster of which each GPU is asked for again as soon as it is free."""

    nodes: list[int]
    gang: list[PodRequest]
    lives_s: list[int]
    policy: int
    rules: HeadOfLine
    now_ns: int = 0
    bound: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profile = Profile("weft", [POLICIES[self.policy]()])
        nodes = [node(f"n{at}", gpus=gpus) for at, gpus in enumerate(self.nodes)]
        self.engine = Engine([profile], nodes, head_of_line=self.rules)
        self.begin()
        self.lives = itertools.cycle(self.lives_s)

    @property
    def keys(self) -> set[str]:
        return {key_of(each) for each in self.gang}

    def another(self) -> None:
        """One more small pod: as many wait at any time as run."""
        one = pod(f"s{next(self.names)}", gpus=1)
        self.at(self.now_ns, PodAdded(replace(one, created_ns=self.now_ns + 1)))

    def run(self, until_ns: int) -> bool:
        """True if the gang has places before then."""
        uids = {each.uid for each in self.gang}
        while self.heap and self.heap[0][0] <= until_ns:
            commands = self.engine.handle(self.next_event(), self.now_ns)
            assert audit(self.engine.ledger) == []
            self.carry_out(commands)
            if uids <= self.bound.keys():
                return True
        return False

    def binds(self, one: PodRequest) -> None:
        self.bound[one.uid] = self.now_ns
        if one not in self.gang:
            self.ends(one, next(self.lives), completed=False)
            self.another()


@st.composite
def stories(draw: st.DrawFn, rules: HeadOfLine) -> Story:
    nodes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    gpus = draw(st.integers(1, max(nodes)))
    room = sum(there // gpus for there in nodes)
    size = draw(st.integers(1, room))
    group = Gang("kubernetes", "team", "train", least=size, created_ns=2 * SECOND)
    gang = [replace(pod(f"train-{n}", gpus=gpus), gang=group) for n in range(size)]
    if gpus > 1 and draw(st.booleans()):
        gang = [replace(pod("train-0", gpus=gpus), created_ns=2 * SECOND)]
    lives = draw(st.lists(st.integers(20, LONGEST_S), min_size=1, max_size=7))
    story = Story(nodes, gang, lives, draw(st.integers(0, 2)), rules)
    for _ in range(sum(nodes)):
        story.another()
    for each in gang:
        story.at(2 * SECOND, PodAdded(each))
    return story


@settings(max_examples=few_or_many(8, 200), deadline=None)
@given(stories(RULES))
def test_a_gang_starts_within_a_known_time_whoever_comes(story: Story) -> None:
    assert story.run(2 * SECOND + BOUND_NS), story.engine.kept_places.counts
    story.run(story.now_ns + MINUTE)
    assert not story.keys & {*kept_for(story.engine)}


def test_without_it_the_stream_keeps_a_gang_waiting_for_ever() -> None:
    """Eight GPUs, pods of ten minutes that end one by one: no two are free at once."""
    group = Gang("kubernetes", "team", "train", least=2, created_ns=SECOND)
    gang = [replace(pod(f"train-{n}", gpus=1), gang=group) for n in range(2)]

    def told(rules: HeadOfLine) -> Story:
        story = Story([8], gang, [600], 1, rules)
        for number in range(8):
            story.at(number * MINUTE, PodAdded(replace(pod(f"p{number}", gpus=1))))
        for _ in range(4):
            story.another()
        for each in gang:
            story.at(8 * MINUTE, PodAdded(each))
        return story

    assert not told(NOTHING_KEPT).run(300 * MINUTE)
    assert told(RULES).run(8 * MINUTE + BOUND_NS)


@settings(max_examples=few_or_many(6, 150), deadline=None)
@given(stories(RULES), st.data())
def test_whatever_happens_nothing_stays_kept_for_who_is_gone(
    story: Story, data: st.DataObject
) -> None:
    """Nodes go and come, the gang is deleted: accounts stay exact, and all is let go."""
    story.run(data.draw(st.integers(1, 12)) * MINUTE)
    name = f"n{data.draw(st.integers(0, len(story.nodes) - 1))}"
    story.at(story.now_ns, NodesChanged((), (name,)))
    story.run(story.now_ns + data.draw(st.integers(1, 10)) * MINUTE)
    back = node(name, gpus=story.nodes[int(name[1:])])
    story.at(story.now_ns, NodesChanged((back,), ()))
    story.run(story.now_ns + data.draw(st.integers(1, 40)) * MINUTE)
    for each in story.gang:
        story.at(story.now_ns, PodGone(each.uid))
    story.run(story.now_ns + SECOND)
    assert not story.keys & story.engine.kept_places.turns.keys()
    assert not story.keys & {*kept_for(story.engine)}
