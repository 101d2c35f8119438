"""Wrong answers of policies: each is an error that names policy, method and value; none counts."""

import pickle
import re
from typing import Any

import numpy as np
import pytest

from weft.core.framework import NEVER, Policy, Query
from weft.core.policies.elastic import ElasticBinpack
from weft.core.policies.packing import BestFit
from weft.model import GpuRequest
from weft.model.errors import PolicyError
from weft.testing import decide, node, pod

WHOLE = "; return whole numbers (np.int64), such as (1000 * score).astype(np.int64)"
MASK = "; return booleans, such as score > 0"


class Answering(Policy):
    """Answers one question with what it was given: a value, or a function of the query."""

    name = "answering"

    def __init__(self, hook: str, answer: Any) -> None:
        def method(*arguments: Any) -> Any:
            return answer(*arguments) if callable(answer) else answer

        # A class of its own, as what a policy overrides is read off its class.
        self.__class__ = type("Answering", (Answering,), {hook: staticmethod(method)})


def outcome(policy: Policy, *pods: Any) -> dict[str, str | None]:
    nodes = [node("a", gpus=2), node("b", gpus=2)]
    found = decide([policy], nodes, pods or [pod("p", milli=500)])
    return {uid: place.node if place else None for uid, place in found.items()}


WRONG = {
    "a float": ("score_nodes", np.array([1.0, 2.5]), "returned 2.5 (float64) for node b" + WHOLE),
    "whole floats": ("score_nodes", np.ones(2), "returned 1.0 (float64) for node a" + WHOLE),
    "NaN": ("score_nodes", [0.5, float("nan")], "returned nan (float64) for node b" + WHOLE),
    "infinity": (
        "score_devices",
        np.array([1, 2, -np.inf, 3]),
        "returned -inf (float64) for GPU 0 of node b" + WHOLE,
    ),
    "too few": (
        "score_nodes",
        np.array([1]),
        "returned 1 values for 2 nodes; return one value for each",
    ),
    "too many": (
        "score_devices",
        np.zeros(6, dtype=np.int64),
        "returned 6 values for 4 GPUs; return one value for each",
    ),
    "two axes": (
        "score_nodes",
        np.zeros((2, 2), dtype=np.int64),
        "returned an array of shape (2, 2) for 2 nodes; return one value for each",
    ),
    "no array": ("score_nodes", 3, "returned 3, which is not an array" + WHOLE),
    "text": ("score_nodes", ["x", "y"], "returned 'x' (<U1) for node a" + WHOLE),
    "booleans": ("score_nodes", [True, False], "returned True (bool) for node a" + WHOLE),
    "too large": (
        "score_nodes",
        np.array([0, 2**50 + 1]),
        f"returned {2**50 + 1} for node b; scores must be within ±2**50",
    ),
    "beyond 64 bits": (
        "score_nodes",
        np.array([0, 2**64 - 1], dtype=np.uint64),
        f"returned {2**64 - 1} for node b; scores must be within ±2**50",
    ),
    "a mask of numbers": (
        "filter_nodes",
        np.array([1, 0]),
        "returned 1 (int64) for node a" + MASK,
    ),
    "a short mask": (
        "filter_devices",
        np.array([True]),
        "returned 1 values for 4 GPUs; return one value for each",
    ),
    "an index beyond": (
        "choose_node",
        7,
        "returned 7; return a whole number from 0 to 1",
    ),
    "half an index": (
        "choose_device",
        0.5,
        "returned 0.5; return a whole number from 0 to 1",
    ),
    "no shape": (
        "pre_filter",
        None,
        "returned None; return the Shape to place, or the one it was given",
    ),
    "a key that cannot be compared": (
        "queue_key",
        (1, float("nan")),
        "returned (1, nan); return a tuple of whole numbers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_names_policy_method_and_value(name: str) -> None:
    hook, answer, what = WRONG[name]
    with pytest.raises(PolicyError) as found:
        outcome(Answering(hook, answer))
    assert str(found.value) == f"policy answering, {hook}: {what}"


def _divides(query: Query) -> Any:
    return 100 // (query.idle - query.idle)


def _casts(query: Query) -> Any:
    with np.errstate(divide="ignore"):
        return (100 / (query.idle - query.idle)).astype(np.int64)


@pytest.mark.parametrize("answer", [_divides, _casts])
def test_division_by_zero_is_told_with_its_line(answer: Any) -> None:
    """NumPy would say 0, or the smallest number of all, and go on."""
    with pytest.raises(PolicyError) as found:
        outcome(Answering("score_nodes", answer))
    pattern = r"policy answering, score_nodes: FloatingPointError: .* encountered in .*"
    assert re.match(
        pattern + r"\(test_policy_answers\.py, line \d+\); divide only", str(found.value)
    )


def test_a_policy_may_divide_by_zero_where_it_says_so() -> None:
    def safe(query: Query) -> Any:
        with np.errstate(divide="ignore"):
            shares = 100 / (query.idle - 2)
        return np.where(np.isfinite(shares), shares, 7).astype(np.int64)

    assert outcome(Answering("score_nodes", safe)) == {"p": "a"}


def test_whatever_is_raised_names_the_policys_line() -> None:
    with pytest.raises(PolicyError, match=r"KeyError: 'x' \(test_policy_answers\.py, line \d+\)$"):
        outcome(Answering("score_nodes", lambda query: {}["x"]))


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint16, np.int64, list])
def test_any_whole_numbers_will_do(kind: type) -> None:
    """Small ones are widened before room is made for the device's number."""
    scores = [100, 120] if kind is list else np.array([100, 120], dtype=kind)
    assert outcome(Answering("score_nodes", scores)) == {"p": "b"}
    devices = [100, 100, 120, 110] if kind is list else np.array([100, 100, 120, 110], dtype=kind)
    assert outcome(Answering("score_devices", devices)) == {"p": "b"}


def test_devices_that_do_not_fit_may_get_any_score() -> None:
    def scores(query: Query) -> Any:
        return np.where(query.device_fits, 1, NEVER)

    first = pod("first", milli=600)
    assert outcome(Answering("score_devices", scores), first, pod("p", milli=600))["p"] == "a"


def test_ways_to_place_several_requests_are_checked_too() -> None:
    class Rating(ElasticBinpack):
        name = "rating"

        def rate_options(self, options: Any) -> Any:
            return super().rate_options(options) / 3

    with pytest.raises(PolicyError, match=r"rating, rate_options: returned .* \(float64\) for way"):
        outcome(
            Rating(), pod("p", gpu_requests=[GpuRequest(1, milli=300), GpuRequest(1, milli=400)])
        )


def test_wefts_own_are_checked_for_type_and_length_alone() -> None:
    assert BestFit.is_built_in
    assert not Answering.is_built_in


def test_errors_cross_processes() -> None:
    error = PolicyError("p", "score_nodes", "returned nan")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.policy, again.hook) == (str(error), "p", "score_nodes")
