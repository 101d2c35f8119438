"""Without NRI nobody names the pod, and yet no container starts with GPUs that are not its own."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from attribution_world import AttributionStory, grant_of
from hypothesis import Phase, given
from hypothesis import settings as how
from hypothesis import strategies as st
from long_form import few_or_many

from fakes.api_time import run
from weft.dialects.resources import slots
from weft.node.agent.container_grant import NOTHING
from weft.node.device_plugin.attribution import answer_of
from weft.node.device_plugin.cdi_files import KIND
from weft.node.device_plugin.kubelet_api import KubeletError

MEMORY = Path("/dev/shm")  # thousands of files that nobody needs on a disk
INTERLEAVINGS = few_or_many(4, 1_000)
OTHER_STORIES = few_or_many(4, 250)


def told(seed: int, *, cdi: bool, world: type[AttributionStory] = AttributionStory):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        story = world(Path(folder), seed, cdi=cdi)
        run(story.tell())
    return story


@pytest.mark.parametrize("cdi", [True, False], ids=["cdi", "environment"])
@how(max_examples=INTERLEAVINGS, phases=(Phase.explicit, Phase.generate))
@given(seed=st.integers(0, 2**32))
def test_no_container_starts_with_what_is_not_its_own(cdi: bool, seed: int) -> None:
    """And each starts in the end. By names nobody is evicted; without, hardly anybody: whose agent
    hears of the pod more than a second after the kubelet did.
    """
    story = told(seed, cdi=cdi)
    assert story.wrong == []
    assert len(story.evicted) <= (0 if cdi else 2)
    asking = {
        (uid, slot.container.name)
        for uid in story.manager.pods.keys() - story.evicted
        for slot in slots(story.pods[uid][0])
        if slot.container.resources.limits
    }
    assert asking <= story.started


def test_the_interleavings_hold_what_they_are_to_test() -> None:
    happened: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for seed in range(OTHER_STORIES):
        story = told(seed, cdi=False)
        happened += story.happened
        answers += story.answers
    assert min(happened[what] for what in ("hear", "start", "agent", "kubelet", "delete")) >= 4
    assert answers["guessed"] > 100


class Unanswered(AttributionStory):
    """The kubelet's pod resources do not answer, so that several pods may be meant."""

    async def pod(self, namespace: str, name: str):
        raise KubeletError("pod resources: UNAVAILABLE")

    async def names(self):
        raise KubeletError("pod resources: UNAVAILABLE")


def test_where_the_kubelet_does_not_say_pods_are_evicted_and_none_is_wrong() -> None:
    evicted = 0
    for seed in range(OTHER_STORIES):
        story = told(seed, cdi=False, world=Unanswered)
        assert story.wrong == []
        evicted += len(story.evicted)
    assert evicted > 0


class Trusting(AttributionStory):
    """A mistake: the first pod that may be meant is taken for the one that is, unchecked."""

    def _begin_agent(self) -> None:
        super()._begin_agent()

        async def allocate(resource: str, size: int):
            for found in self.agent.candidates(resource, size)[:1]:
                return answer_of(await grant_of(found.record, found.container))
            return answer_of(NOTHING)

        async def pre_start(resource: str, ids: frozenset[str]) -> None:
            pass

        self.agent.allocate, self.agent.pre_start = allocate, pre_start


class Reusing(AttributionStory):
    """A mistake: a CDI name is made of the devices, and is used again with them."""

    def _begin_agent(self) -> None:
        super()._begin_agent()
        if self.cdi is not None:
            self.cdi.new_name = lambda: f"{KIND}={self.rng.randint(0, 5)}"


@pytest.mark.parametrize(("mistaken", "cdi"), [(Trusting, False), (Reusing, True)])
def test_a_mistake_is_noticed(mistaken: type[AttributionStory], cdi: bool) -> None:
    assert any(told(seed, cdi=cdi, world=mistaken).wrong for seed in range(20))
