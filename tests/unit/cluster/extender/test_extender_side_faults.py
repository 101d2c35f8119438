"""Faults beside an answer (reasons in words, counts, gauges, reports) cost that answer nothing:
kube-scheduler's pod has its turn, and each is counted and told once."""

import logging

import pytest
from extender_world import StubCluster, args, bind_args, elastic, serving

from weft.cluster.extender import server as extender_server
from weft.cluster.extender.server import ExtenderMetrics
from weft.core.engine import PodFitsNowhere, TaskFaulted, questions
from weft.core.engine.deciding import EXPLAINING
from weft.core.engine.pricing import PriceLists
from weft.model import PodRequest
from weft.testing import node, shape


def raises(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of our own")


POINTS = {
    "reasons": (questions, "reason_of_each"),
    "counts": (ExtenderMetrics, "answered"),
    "gauges": (ExtenderMetrics, "collect"),
    "status": (extender_server, "status"),
    "inspect": (extender_server, "inspect"),
    "prices": (PriceLists, "comes"),
    "whom it matters to": (PriceLists, "follow"),
}


@pytest.mark.parametrize("point", POINTS)
async def test_what_breaks_off_beside_an_answer_costs_no_pod_its_turn(
    point: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = StubCluster([node("n1", gpus=1), node("n2")])
    monkeypatch.setattr(*POINTS[point], raises)
    async with serving(cluster) as (_, _, session):
        for name in ("a", "b"):
            async with session.post(
                "/weft/filter", data=args(elastic(name), ["n1", "n2"])
            ) as answer:
                told = await answer.json()
                assert told["NodeNames"] == ["n1"]
                assert {**told["FailedNodes"], **told["FailedAndUnresolvableNodes"]}["n2"]
            async with session.post("/weft/bind", data=bind_args(name, "n1")) as answer:
                assert not (await answer.json())["Error"]
            for page in ("/metrics", "/scheduler/status", "/gpushare-scheduler/inspect"):
                async with session.get(page) as answer:
                    assert answer.status in (200, 500)
    assert [bound.pod.name for bound in cluster.bound] == ["a", "b"]
    assert sum("of our own" in str(one.exc_info) for one in caplog.records) <= 1


def test_reasons_that_break_off_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """In short, with the next event."""
    cluster = StubCluster([node("n2")])
    monkeypatch.setattr(questions, "reason_of_each", raises)
    asking = PodRequest("p", "p", shape(memory_mib=100))
    answers = questions.which_fit(cluster.engine, cluster.engine.profiles["weft"], asking, ["n2"])
    assert list(answers.failed.values()) + list(answers.unresolvable.values()) != [""]
    told = cluster.handle(PodFitsNowhere("p"))
    assert {one.task for one in told if isinstance(one, TaskFaulted)} == {EXPLAINING}
