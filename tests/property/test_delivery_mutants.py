"""Each check of a delivery record, left out, lets a forgery through that the tests notice."""

from collections.abc import Callable

import pytest
from hypothesis import Phase, given
from hypothesis import settings as how
from hypothesis import strategies as st
from test_delivery_shares import (
    gets_no_more_than_is_due_by_a_forged_record,
    is_refused_to_who_asks_for_nothing_and_to_whom_it_was_not_placed,
    recorded,
)

import weft.dialects.delivery as compared

Patch = pytest.MonkeyPatch


def who_asks_for_nothing_is_believed(patch: Patch) -> None:
    rightly = compared.why_not_due

    def why_not_due(*given: object) -> str:
        problem = rightly(*given)  # type: ignore[arg-type]
        return "" if "requests no GPU" in problem else problem

    patch.setattr("test_delivery_shares.why_not_due", why_not_due)


def any_cards_are_believed(patch: Patch) -> None:
    patch.setattr(compared, "_amounts", lambda card: ())


def any_part_of_a_container_is_believed(patch: Patch) -> None:
    patch.setattr(compared, "_beyond_asked", lambda *_, **__: "")


def containers_spend_their_pods_memory_twice(patch: Patch) -> None:
    patch.setattr(compared, "_spent_twice", lambda *_: "")


def any_placement_is_believed(patch: Patch) -> None:
    patch.setattr(compared, "subject_of", lambda text: ("u-1", "n"))


def what_a_container_is_shown_is_not_read(patch: Patch) -> None:
    patch.setattr(compared, "_VISIBLE", "SOMETHING_ELSE")


MUTANTS: tuple[Callable[[Patch], None], ...] = (
    who_asks_for_nothing_is_believed,
    any_cards_are_believed,
    any_part_of_a_container_is_believed,
    containers_spend_their_pods_memory_twice,
    any_placement_is_believed,
    what_a_container_is_shown_is_not_read,
)


@how(max_examples=300, deadline=None, phases=(Phase.generate,), derandomize=True, database=None)
@given(data=st.data())
def forgeries(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["weft", "gpushare"]))
    if (drawn := data.draw(recorded(name))) is not None:
        gets_no_more_than_is_due_by_a_forged_record(name, drawn, data)
        is_refused_to_who_asks_for_nothing_and_to_whom_it_was_not_placed(name, drawn)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_check_that_is_left_out_is_noticed(
    mutant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        forgeries()
