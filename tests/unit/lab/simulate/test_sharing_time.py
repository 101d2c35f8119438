"""Time on a card: compute in proportion, images that are pulled, and how long queries take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharing_worlds import job, node, scenario

from weft.core.policies.packing import GpuShare
from weft.core.policies.spreading import Exclusive
from weft.lab.simulate.sharing.gpus import ByPairs, ComputeSharing
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase, QueryStream, outcome_of
from weft.lab.simulate.sharing.run import NodeImages, run_shared

CARD = node().gpus[0].memory_mib


def loaded(uid: str, ratio: float, seconds: float = 100, **more: object) -> Job:
    phase = JobPhase(round(seconds * SECOND_NS), 1000, ratio, ratio / 2, ratio)
    return Job(uid, uid, 0, 2000, (phase,), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratios", "expected_s"), [((0.4, 0.5), 100), ((0.8, 0.8), 160), ((1.0, 1.0, 1.0), 300)]
)
def test_compute_in_proportion_stretches_all_once_more_is_needed_than_there_is(
    ratios: tuple[float, ...], expected_s: float
) -> None:
    jobs = [loaded(str(number), ratio) for number, ratio in enumerate(ratios)]
    run = run_shared(scenario(*jobs, sharing=ComputeSharing(True)), GpuShare())
    assert run.makespan_s == pytest.approx(expected_s, abs=0.01)
    each = ComputeSharing(True, each=1.0)
    run = run_shared(scenario(*jobs, sharing=each), GpuShare())
    assert run.makespan_s == pytest.approx(100 * len(ratios), abs=0.01)


def test_measured_slowdowns_are_the_least_where_compute_is_shared_in_proportion() -> None:
    measured = ByPairs({("a", "b"): 3000, ("b", "a"): 1000})
    jobs = [loaded("a", 0.9, 50), loaded("b", 0.9, 1000)]
    run = run_shared(scenario(*jobs, slowdown=measured, sharing=ComputeSharing(True)), GpuShare())
    ended = {one.uid: one.finished_s for one in run.outcomes}
    assert ended["a"] == pytest.approx(150, abs=0.01)
    # b: 150 s at 1.8, then alone
    assert ended["b"] == pytest.approx(150 + 1000 - 150 / 1.8, abs=0.01)


def test_a_node_pulls_an_image_once_and_one_after_the_other() -> None:
    images = NodeImages(mib_per_s=100)
    s = SECOND_NS
    assert images.wait_ns("n", "a", 1000, 0) == 10 * s
    assert images.wait_ns("n", "b", 500, 4 * s) == 11 * s  # a until 10, b until 15
    assert images.wait_ns("n", "a", 1000, 6 * s) == 4 * s
    assert images.wait_ns("n", "a", 1000, 20 * s) == 0
    assert images.wait_ns("m", "a", 1000, 20 * s) == 10 * s
    assert NodeImages(0).wait_ns("n", "a", 1000, 0) == 0


def test_containers_start_once_their_image_is_there() -> None:
    jobs = [
        Job("first", "kind", 0, 9000, (JobPhase(10 * SECOND_NS, 10),), image_mib=600),
        Job("second", "kind", 0, 9000, (JobPhase(10 * SECOND_NS, 10),), image_mib=600),
    ]
    run = run_shared(scenario(*jobs, pull_mib_per_s=20.0), Exclusive())
    assert [one.finished_s for one in run.outcomes] == [40, 50]


def test_queries_take_as_much_longer_as_their_job_does() -> None:
    """Half of a's work beside b (twice as slow), the rest alone: half of its queries are late."""
    stream = QueryStream(100_000_000, 150_000_000)
    a = loaded("a", 1.0, 100, queries=stream)
    run = run_shared(scenario(a, loaded("b", 1.0, 50), sharing=ComputeSharing(True)), GpuShare())
    one = next(each for each in run.outcomes if each.uid == "a")
    assert (one.queries, one.late_queries) == (1000, 500)
    assert (one.query_p90_s, one.query_p99_s) == (0.2, 0.2)


def test_queries_sent_while_their_pod_waits_are_late() -> None:
    stream = QueryStream(100_000_000, 150_000_000, each_s=2.0)
    a = loaded("a", 0.5, 100, queries=stream)
    before = job("0", (30, 10), asks=9000)
    run = run_shared(scenario(before, a), Exclusive())
    one = next(each for each in run.outcomes if each.uid == "a")
    assert (one.queries, one.late_queries) == (200, 60)
    assert one.query_p99_s == 0.1


@given(
    served=st.dictionaries(st.integers(1, 9_000), st.integers(1, 10**12), min_size=1, max_size=6),
    waited_s=st.integers(0, 10_000),
    each_s=st.sampled_from([0.0, 0.5, 7.0]),
)
def test_never_more_queries_are_late_than_there_are(
    served: dict[int, int], waited_s: int, each_s: float
) -> None:
    stream = QueryStream(100_000_000, 150_000_000, each_s)
    found = outcome_of(stream, 500 * SECOND_NS, served, waited_s * SECOND_NS)
    assert 0 <= found.late <= found.queries
    assert found.p90_s is not None
    assert found.p99_s is not None
    least, most = (round(0.1 * end(served) / 1000, 6) for end in (min, max))
    assert least <= found.p90_s <= found.p99_s <= most
