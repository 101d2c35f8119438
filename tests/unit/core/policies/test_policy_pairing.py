"""Matching kinds of pods with groups of GPUs is matching each pod with each GPU."""

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.policies.pair_costs import greedy, greedy_alike


@given(st.data())
@settings(max_examples=few_or_many(80, 200))
def test_who_is_alike_is_matched_as_each_would_be(data: st.DataObject) -> None:
    pods = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12), "the kind of each pod")
    cards = data.draw(st.lists(st.integers(0, 3), max_size=12), "the group of each GPU")
    values = st.sampled_from([1.0, 1.5, 2.0, 2.5, float("inf")])  # many are equal, some never
    costs = np.array(data.draw(st.lists(values, min_size=16, max_size=16))).reshape(4, 4)
    pairs = [
        (float(costs[kind, group]), number, gpu)
        for number, kind in enumerate(pods)
        for gpu, group in enumerate(cards)
    ]
    found = greedy(pair for pair in pairs if np.isfinite(pair[0]))
    waiting = [[n for n, kind in enumerate(pods) if kind == one] for one in range(4)]
    gpus = [[n for n, group in enumerate(cards) if group == one] for one in range(4)]
    for own in set(pods):
        wanted = next((gpu for number, gpu in found.items() if pods[number] == own), -1)
        assert greedy_alike(costs, waiting, gpus, own) == wanted


def test_many_pods_and_many_gpus_are_matched_at_once() -> None:
    """Pair by pair these were 20 million; it takes some hundredths of a second."""
    rng = np.random.default_rng(0)
    waiting = [list(range(kind, 1_000, 50)) for kind in range(50)]
    gpus = [list(range(group, 20_000, 50)) for group in range(50)]
    begin = time.process_time()
    costs = rng.random((50, 50))
    costs[7] += 1.0  # the last to be served
    assert greedy_alike(costs, waiting, gpus, 7) >= 0
    assert time.process_time() - begin < 1.0
