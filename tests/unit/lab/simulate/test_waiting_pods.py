"""Pods of studies of waiting: their mixes, load, and who of them may be moved."""

import pytest

from weft.lab.simulate.gang_jobs import HostSize
from weft.lab.simulate.waiting_pods import MOST_S, PodMix, waiting_pods
from weft.model import BadInputError

HOSTS = [HostSize(8, 128_000, 786_432), HostSize(2, 104_000, 524_288)]


def milli_seconds(pod):
    return pod.gpus * pod.milli * (pod.deleted_s - pod.scheduled_s)


@pytest.mark.parametrize("load", [0.5, 1.0])
def test_the_load_is_what_pods_ask_for_of_the_time_in_which_they_come(load):
    pods = waiting_pods(HOSTS, mix=PodMix.SHARES, pods=5_000, load=load, seed=1)
    span_s = pods[-1].created_s
    assert sum(map(milli_seconds, pods)) / (10_000 * span_s) == pytest.approx(load, rel=0.05)
    assert max(pod.deleted_s - pod.scheduled_s for pod in pods) < MOST_S + 1


def test_a_mix_has_shares_or_large_pods():
    of_shares = waiting_pods(HOSTS, mix=PodMix.SHARES, pods=4_000, load=1, seed=2)
    of_large = waiting_pods(HOSTS, mix=PodMix.MANY_GPU, pods=4_000, load=1, seed=2)
    large, shares = (
        [sum(pod.gpus > 1 for pod in pods) / 4_000 for pods in (of_shares, of_large)],
        [sum(pod.milli < 1000 for pod in pods) / 4_000 for pods in (of_shares, of_large)],
    )
    assert large == pytest.approx([0.029, 0.123], abs=0.02)
    assert shares == pytest.approx([0.594, 0.386], abs=0.03)


def test_who_may_be_moved_is_a_share_and_may_be_at_a_higher_ratio_too():
    def movable(ratio):
        pods = waiting_pods(HOSTS, mix=PodMix.SHARES, pods=2_000, load=1, seed=3, movable=ratio)
        assert all(pod.milli < 1000 for pod in pods if pod.restart_s is not None)
        shares = sum(pod.milli < 1000 for pod in pods)
        return {at for at, pod in enumerate(pods) if pod.restart_s == 60}, shares

    few, shares = movable(0.1)
    more, _ = movable(0.3)
    everyone, _ = movable(1.0)
    assert few < more < everyone
    assert len(everyone) == shares
    assert len(more) == pytest.approx(0.3 * shares, rel=0.15)


def test_pods_come_in_the_same_order_at_every_load():
    low = waiting_pods(HOSTS, mix=PodMix.MANY_GPU, pods=300, load=0.8, seed=4)
    high = waiting_pods(HOSTS, mix=PodMix.MANY_GPU, pods=300, load=1.0, seed=4)
    assert [pod.name for pod in low] == [pod.name for pod in high]
    assert all(pod.created_s > other.created_s for pod, other in zip(low, high, strict=True))


def test_only_pods_come_that_fit_some_empty_node():
    pods = waiting_pods(HOSTS[1:], mix=PodMix.MANY_GPU, pods=500, load=1, seed=5)
    assert {pod.gpus for pod in pods} == {1, 2}
    with pytest.raises(BadInputError, match="use larger ones"):
        waiting_pods([HostSize(1, 100, 1)], mix=PodMix.SHARES, pods=1, load=1, seed=0)
