"""The simulated card and the original's whole scheduler, held to Ferikoglou's published runs.

What the simulation claims of these jobs stands here: which containers die, how much memory they
hold, and that the original's scheduler, on simulated cards, does what it did on the real one.
"""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from ece_logs import LoggedPlacement, PublishedRun, placements, published
from kube_knots_original import OriginalScheduler, placed_as_logged

from weft.lab.simulate.sharing import ece_like
from weft.lab.simulate.sharing.job import SECOND_NS, Job
from weft.lab.simulate.sharing.outcome import JobOutcome
from weft.lab.simulate.sharing.run import SharedScenario

LEVELS = (0, 50, 100)
DRIVER_MIB = 11
"""Memory that any container at all costs a card besides."""


class Level:
    """One level of over-provisioning: what was published, and the same jobs to simulate."""

    def __init__(self, data: Path, percent: int) -> None:
        self.percent, self.folder = percent, data / "ece" / f"overprov_{percent}"
        self.run: PublishedRun = published(data / "ece", percent, "kube-knots")
        self.gpushare: PublishedRun = published(data / "ece", percent, "gpushare")
        self.logged = placements(data / "ece", percent)
        jobs = tuple(self._job(each) for each in self.logged)
        self.scenario = SharedScenario(ece_like.cluster(1), jobs, ece_like.slowdown(percent))

    def _job(self, each: LoggedPlacement) -> Job:
        ssd, arrives_ns = ece_like.SSD, ece_like.FIRST_NS + round(each.found_s * SECOND_NS)
        asks_mib = ece_like.request_mib(ssd.need_mib, self.percent)
        rest = (ssd.phases, ece_like.START_NS, ece_like.END_NS)
        return Job(each.name, ssd.name, arrives_ns, asks_mib, *rest)

    def placed(self) -> list[JobOutcome]:
        """The logged bindings on a simulated card."""
        bound_ns = {
            each.name: ece_like.FIRST_NS + round(each.bound_s * SECOND_NS) for each in self.logged
        }
        return placed_as_logged(self.scenario, bound_ns)


@pytest.fixture(scope="module", params=LEVELS, ids=lambda percent: f"overprovisioned-{percent}")
def level(request: pytest.FixtureRequest, weft_data: Path) -> Level:
    return Level(weft_data, request.param)


@pytest.mark.data
def test_the_fifth_and_sixth_container_hold_what_is_left(level: Level) -> None:
    """Four full ones, a fifth, a sixth: the only amounts above three that last half a minute."""
    rows = csv.reader(
        (level.folder / "CUSTSCHED_dcgm_fb_used.csv").read_text(encoding="utf-8-sig").splitlines()
    )
    series = [(float(at), float(mib)) for at, mib in rows]
    changes = [series[0], *(after for before, after in pairwise(series) if before[1] != after[1])]
    lasting = {
        mib for (at, mib), (until, _) in pairwise(changes) if until - at >= 30 and mib > 24_000
    }
    full = ece_like.SSD.need_mib - DRIVER_MIB
    fifth, sixth = ece_like.FALLBACK_MIB
    crowded = [4 * full, 4 * full + fifth, 4 * full + fifth + sixth]
    assert max(mib for _, mib in series) <= ece_like.CARD_MIB
    assert all(min(abs(mib - DRIVER_MIB - each) for each in crowded) <= 60 for mib in lasting)
    assert crowded[-1] + 4 * DRIVER_MIB + sixth > ece_like.CARD_MIB  # no simulated seventh


@pytest.mark.data
def test_logged_bindings_on_a_simulated_card(level: Level) -> None:
    outcomes = level.placed()
    jct = sum(outcome.jct_s or 0.0 for outcome in outcomes) / len(outcomes)
    assert jct == pytest.approx(level.run.jct_mean_s, rel=0.1)
    assert max(each.finished_s or 0.0 for each in outcomes) == pytest.approx(
        level.run.makespan_s, rel=0.05
    )
    restarts = [outcome.restarts for outcome in outcomes if outcome.restarts]
    assert len(restarts) == sum(job.restarts > 0 for job in level.run.jobs)
    assert sum(restarts) == pytest.approx(level.run.restarts, abs=2)


@pytest.mark.data
def test_the_originals_scheduler_wins_against_gpushare_as_published(level: Level) -> None:
    outcomes = OriginalScheduler(level.scenario).go()
    jct = sum(outcome.jct_s or 0.0 for outcome in outcomes) / len(outcomes)
    assert jct == pytest.approx(level.run.jct_mean_s, rel=0.12)
    assert jct < level.gpushare.jct_mean_s
    assert max(each.finished_s or 0.0 for each in outcomes) == pytest.approx(
        level.run.makespan_s, rel=0.05
    )
