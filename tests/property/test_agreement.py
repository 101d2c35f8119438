"""After any restarts and deletions a node's agent counts whom the API server shows and who runs."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from agreement_world import STEPS, AgreementStory
from long_form import few_or_many

from fakes.api_time import run
from weft.node.agent.delivery import Delivery

MEMORY = Path("/dev/shm")
STORIES = few_or_many(15, 4_000)


def told(seed: int) -> AgreementStory:
    """The story of this seed, at its end."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        story = AgreementStory(Path(folder), seed)
        run(story.tell())
    return story


def test_the_agents_account_is_what_runs_and_is_shown() -> None:
    happened: Counter[str] = Counter()
    for seed in range(STORIES):
        story = told(seed)
        assert story.wrong == [], f"seed {seed}"
        happened += story.happened
    assert min(happened[step] for step in STEPS) > STORIES // 10


async def _nobody(self: Delivery) -> bool:
    return False


async def _all_that_are_not_shown(self: Delivery) -> bool:
    gone = self._held.keys() - self._pods.pods.keys()
    for uid in gone:
        del self._held[uid]
    return bool(gone)


@pytest.mark.parametrize("instead", [_nobody, _all_that_are_not_shown])
def test_the_stories_find_an_account_that_only_counts_or_only_hears(
    instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Delivery, "_forget_gone", instead)
    assert any(told(seed).wrong for seed in range(STORIES))
