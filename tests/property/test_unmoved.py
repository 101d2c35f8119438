"""Whatever the owners of running pods edit: nobody else goes, and no GPU has more or less free.

100,000 edits with WEFT_TEST_LONG=1; `WEFT_UNMOVED_SEED` plays other stories.
"""

import os
from collections import Counter

import pytest
from live_ways import OTHERS, SHIPPED, WAYS
from long_form import few_or_many
from unmoved_world import story

FIRST = int(os.environ.get("WEFT_UNMOVED_SEED", "0"))
STORIES, EDITS = few_or_many(1, 50), few_or_many(25, 100)


@pytest.mark.parametrize("marks", [False, True], ids=["policies", "no-policies"])
@pytest.mark.parametrize("way", [way.name for way in (*SHIPPED, *few_or_many((), OTHERS[:3]))])
def test_edits_by_owners_move_nobody(way: str, marks: bool) -> None:
    hits: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + STORIES):
        try:
            hits += story(seed, WAYS[way], EDITS, marks=marks)
        except AssertionError as error:
            raise AssertionError(f"{way}, seed {seed}: {error}") from error
    edits = sum(count for what, count in hits.items() if what != "restarts")
    assert edits == STORIES * EDITS
    assert hits["restarts"] == STORIES * (EDITS // 20)
