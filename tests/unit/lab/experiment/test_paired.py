"""Paired differences and their intervals."""

import pytest

from weft.lab.experiment.paired import paired_difference


def test_a_constant_factor_has_no_width() -> None:
    found = paired_difference([80.0, 160.0, 40.0], [100.0, 200.0, 50.0])
    assert (found.percent, found.low_percent, found.high_percent) == (-20.0, -20.0, -20.0)


def test_it_is_the_ratio_of_means_and_the_interval_spans_the_seeds() -> None:
    found = paired_difference([110.0, 300.0], [100.0, 100.0])
    assert found.percent == 105.0
    assert (found.low_percent, found.high_percent) == (10.0, 200.0)


def test_pairs_are_drawn_together() -> None:
    """The seeds differ by a factor of 100, the policies by 1 %: unpaired this could not be seen."""
    base = [10.0, 1000.0, 30.0, 500.0]
    found = paired_difference([1.01 * value for value in base], base)
    assert (found.low_percent, found.high_percent) == (1.0, 1.0)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="paired"):
        paired_difference([], [])
