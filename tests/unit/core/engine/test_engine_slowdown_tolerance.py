"""How slow a running pod may get: less than its policy allows where its own SLO does."""

import msgspec
import pytest
from slowdown_world import BEST_EFFORT, CRITICAL, Life, Tolerant

from weft.core.engine import PodSeenBound
from weft.core.framework import Policy
from weft.model.slowdown_limit import SlowdownLimit
from weft.testing import node, placement


def served(
    slowdown_limit: SlowdownLimit = (), gpus: tuple[int, ...] = (0,), policy: Policy | None = None
) -> Life:
    """A latency-critical pod on a T4 (GPU 0), on an A100 (GPU 1) or on both, one beside it."""
    life = Life(policy=policy or Tolerant())
    life.engine.ledger.set_nodes([node("a", gpus=2, model=["T4", "A100"])])
    for uid, job_class in (("lc", CRITICAL), ("free", BEST_EFFORT)):
        place = placement(uid, "a", gpus if uid == "lc" else gpus[0], memory_mib=4_000)
        life.tell(
            PodSeenBound(
                msgspec.structs.replace(
                    place, application=uid, job_class=job_class, slowdown_limit=slowdown_limit
                )
            )
        )
    life.look(lc=1.0, free=1.0)
    return life


def allowed(life: Life, uid: str = "lc") -> float:
    tolerance = life.engine.tolerance_of(uid)
    assert tolerance is not None
    return tolerance.critical


def test_it_goes_for_a_pod_whose_own_bound_is_broken() -> None:
    life = served((("", 107),))
    assert life.looks(10, lc=1.07) == []
    assert life.look(lc=1.08) == {}
    ((uid, why),) = life.look(lc=1.08).items()
    assert (uid, why.rule, why.bound) == ("free", "bound", 1.07)
    assert served().looks(10, lc=1.08) == [], "the policy allows it"


def test_what_counters_cannot_tell_sends_nobody_away() -> None:
    life = served((("", 100),))
    assert allowed(life) == 1.05
    assert life.looks(10, lc=1.05) == []
    assert [uid for _, uid in life.looks(2, lc=1.06)] == ["free"]


@pytest.mark.parametrize(
    ("slowdown_limit", "gpus", "bound"),
    [
        ((("t4", 106),), (0,), 1.06),
        ((("t4", 106),), (1,), 1.10),
        ((("t4", 108), ("", 106)), (0, 1), 1.06),
        ((("", 900),), (0,), 1.10),
    ],
)
def test_it_is_that_of_the_gpus_it_has_and_never_more_than_the_policys(
    slowdown_limit, gpus, bound
) -> None:
    assert allowed(served(slowdown_limit, gpus)) == bound


def test_a_policy_that_allows_less_is_not_made_to_allow_more() -> None:
    class Strict(Tolerant):
        @property
        def tolerance(self):
            return super().tolerance._replace(critical=1.02)

    assert allowed(served((("", 100),), policy=Strict())) == 1.02


def test_where_its_node_is_gone_or_nobody_sends_pods_away() -> None:
    life = served((("t4", 106), ("", 107)))
    life.engine.ledger.set_nodes([], ["a"])
    assert allowed(life) == 1.07
    assert allowed(life, "who?") == 1.10
    assert served((("", 106),), policy=Policy()).engine.tolerance_of("lc") is None
