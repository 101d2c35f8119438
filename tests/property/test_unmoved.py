"""Whatever the owners of running pods edit: nobody else goes, and no GPU has more or less free.

100,000 edits with WEFT_TEST_LONG=1; `WEFT_UNMOVED_SEED` plays other stories.
"""

import os
from collections import Counter
from collections.abc import Callable

import pytest
from long_form import few_or_many
from unmoved_world import RESTART_EVERY, story
from ways import DEFAULT, OTHERS, SHIPPED, WAYS

from weft.cluster.state import bound_share
from weft.cluster.state.bound_share import BoundShare
from weft.dialects import evidence, registry
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import Node

FIRST = int(os.environ.get("WEFT_UNMOVED_SEED", "0"))
STORIES, EDITS = few_or_many((1, 60), (50, 100))


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
    assert hits["restarts"] == STORIES * (EDITS // RESTART_EVERY)


def labels_of_bound_pods_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registry, "_placed_by_words", lambda _: True)


def whoever_contradicts_himself_is_charged_every_card(patch: pytest.MonkeyPatch) -> None:
    def all_cards(pod: Pod, node: Node, settings: DialectSettings, *_: object) -> BoundShare:
        return bound_share.unreadable(pod, node, settings, "it contradicts itself")

    patch.setattr(bound_share, "agreed", lambda *_: "")
    patch.setattr(registry, "parse_bound", lambda pod, how: (registry.parse_pod(pod, how), ""))
    patch.setattr(bound_share, "contradicting", all_cards)


def the_delivery_record_is_no_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "_delivered", lambda *_: {})


def words_count_as_they_are_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bound_share, "saying", lambda placement, _: placement)


def the_next_leader_reads_words_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bound_share, "said_in", lambda _: None)


MUTANTS = [
    labels_of_bound_pods_are_believed,
    whoever_contradicts_himself_is_charged_every_card,
    the_delivery_record_is_no_mark,
    words_count_as_they_are_now,
    the_next_leader_reads_words_anew,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_edits_catch(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"label|annotation|mark|none|restart|spec|owner"):
        walk_on()


def walk_on() -> None:
    for seed in range(40):
        story(seed, DEFAULT, 40, marks=True)
