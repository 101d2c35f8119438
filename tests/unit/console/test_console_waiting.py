"""Rows of very many pending pods."""

from time import perf_counter

from weft.console.picture import PictureMaker, PodFacts
from weft.console.waiting import WaitingReasons
from weft.core.engine import Engine
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.testing import node, pod

PATIENCE_S = 20.0
"""Many times what it takes, for machines that do much else."""


def test_ten_thousand_pending_pods_are_all_shown_and_counted() -> None:
    engine = Engine([Profile("weft", [built_in().create("fgd")])], [node("n1", gpus=1)])
    pods = [pod(f"u{at}", memory_mib=10**6 + at % 7) for at in range(10_000)]
    began = perf_counter()
    rows = WaitingReasons(engine, slice_s=0.0).rows(pods)
    picture = PictureMaker(engine).picture(0.0, lambda uid: PodFacts("a", uid), rows)
    assert perf_counter() - began < PATIENCE_S
    assert picture.waiting.keys() == {pod.uid for pod in pods}
    assert {row.group for row in rows} == {rows[0].group}
    (queue,) = picture.queues.values()
    assert (queue.waiting, queue.waiting_gpus) == (10_000, 10_000)
