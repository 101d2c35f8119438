"""A dialect's units on a real card: together exactly the card, never more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model import GpuMemoryRequest

cards = st.integers(1, 200_000)
units = st.sampled_from([1, 100, 256, 1000, 1024])


@given(card_mib=cards, unit_mib=units, half_up=st.booleans(), data=st.data())
def test_units_of_one_card_never_overbook_it(
    card_mib: int, unit_mib: int, half_up: bool, data: st.DataObject
) -> None:
    left = GpuMemoryRequest("units", 1, unit_mib, half_up).units_on(card_mib)
    charged = 0
    while left > 0:
        value = data.draw(st.integers(max(1, left // 8), left))
        charged += GpuMemoryRequest("units", value, unit_mib, half_up).mib_on(card_mib)
        left -= value
    assert charged <= card_mib


@given(card_mib=cards, unit_mib=units, half_up=st.booleans())
def test_all_units_are_the_whole_card_and_one_more_is_too_much(
    card_mib: int, unit_mib: int, half_up: bool
) -> None:
    count = GpuMemoryRequest("units", 1, unit_mib, half_up).units_on(card_mib)
    if count:
        assert GpuMemoryRequest("units", count, unit_mib, half_up).mib_on(card_mib) == card_mib
    assert GpuMemoryRequest("units", count + 1, unit_mib, half_up).mib_on(card_mib) > card_mib


@given(card_mib=cards, parts=st.lists(st.integers(1, 100), max_size=20))
def test_percent_of_one_card_never_overbook_it(card_mib: int, parts: list[int]) -> None:
    if sum(parts) <= 100:
        assert sum(GpuMemoryRequest("percent", part).mib_on(card_mib) for part in parts) <= card_mib
    assert GpuMemoryRequest("percent", 100).mib_on(card_mib) == card_mib
    assert GpuMemoryRequest("percent", 101).mib_on(card_mib) > card_mib


@given(card_mib=cards, value=st.integers(0, 300_000))
def test_mib_are_mib_whatever_the_card(card_mib: int, value: int) -> None:
    assert GpuMemoryRequest("mib", value).mib_on(card_mib) == value
    assert GpuMemoryRequest("whole").mib_on(card_mib) == card_mib
    assert GpuMemoryRequest().mib_on(card_mib) == 0


@pytest.mark.parametrize(
    ("memory", "card_mib", "mib"),
    [
        (GpuMemoryRequest("units", 16, 1024, half_up=True), 16_160, 16_160),
        (GpuMemoryRequest("units", 8, 1024, half_up=True), 16_160, 8080),
        (GpuMemoryRequest("units", 15, 1024), 16_160, 16_160),
        (GpuMemoryRequest("units", 16_160, 1), 16_160, 16_160),
        (GpuMemoryRequest("percent", 33), 16_160, 5332),
    ],
)
def test_the_dialects_units_on_a_16160_mib_card(
    memory: GpuMemoryRequest, card_mib: int, mib: int
) -> None:
    assert memory.mib_on(card_mib) == mib


def test_no_units_are_no_memory_even_on_a_card_below_one_unit() -> None:
    assert GpuMemoryRequest("units", 0, 1024).mib_on(512) == 0
