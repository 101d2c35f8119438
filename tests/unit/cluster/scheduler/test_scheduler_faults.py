"""A pod that breaks a decision off: told once, counted, explained; its neighbours are bound."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from scheduler_world import add_node, add_pod, world

from weft.core.framework import Query
from weft.core.ledger.table import Ints
from weft.core.policies.packing import BestFit


def raises(query: Query) -> Ints:
    raise OverflowError("nobody thought of 666")


def returns_nan(query: Query) -> Ints:
    return np.full(query.n, np.nan)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("bad", "mistake"),
    [
        (raises, "OverflowError: nobody thought of 666"),
        (
            returns_nan,
            "returned nan (float64) for node n; return whole numbers (np.int64), such as "
            "(1000 * score).astype(np.int64)",
        ),
    ],
)
async def test_a_poison_pod_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bad: Callable[[Query], Ints],
    mistake: str,
) -> None:
    def brittle(self: BestFit, query: Query) -> Ints:
        need = query.demand.needs and query.demand.needs[0]
        return bad(query) if need and need.gpu_request.memory.value == 666 else query.idle

    monkeypatch.setattr(BestFit, "score_nodes", brittle)
    caplog.set_level(logging.ERROR, "weft.cluster")
    mistake = f"policy best-fit, score_nodes: {mistake}"
    why = f"deciding for this pod failed: {mistake}"

    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "poison", 666)
        add_pod(cluster.server, "well", 100)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("well"))
        found = await cluster.explain("poison")
        assert found.state == "faulted"
        assert found.text == f"answering about this pod failed: {mistake}"
        add_node(cluster.server, "m")
        add_pod(cluster.server, "well-too", 100)
        await cluster.until(lambda: cluster.bound("well-too"))
        told = await cluster.samples()
        assert told["weft_decision_faults_total",] >= 2
        assert told["scheduler_schedule_attempts_total", "profile=weft", "result=error"] >= 1
        assert told["scheduler_pending_pods", "queue=unschedulable"] <= 1
    deciding = [r for r in caplog.records if why in r.getMessage()]
    assert [r.getMessage() for r in deciding] == [
        f"pod d/poison: {why}; this is a mistake in policy best-fit"
    ]
