"""Pods whose annotations are made to harm: they cost themselves their place, never the process."""

import asyncio
import json
import logging
from functools import partial
from typing import Any

import msgspec
import pytest
from live_world import LONG_AGO, World, bind, node, pod, until, world

from weft.cluster.state.bound_share import placed_by_weft
from weft.kube.pods import Pod

DEEP = "[" * 5000 + "]" * 5000
MARK = "weft.dev/placement"


async def goes_on(cluster: World) -> None:
    """A pod that comes now is bound, and nothing has ended the taking-in."""
    cluster.server.add("pods", pod("next", 100))
    await until(lambda: cluster.server.get("pods", "next", "d")["spec"].get("nodeName"))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(cluster.live.failed(), 0.01)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("weft.dev/out-of-memory", '{"end": "a", "more": ' + DEEP + "}"),
        ("weft.dev/out-of-memory", '{"end": "a", "peak_mib": 1' + "0" * 30 + "}"),
        (MARK, DEEP),
        (MARK, '{"shares": [[0, ' + "9" * 5000 + ', 100, 0, ""]]}'),
    ],
)
async def test_an_annotation_nobody_writes_stops_nobody(name: str, text: str) -> None:
    async with world() as cluster:
        cluster.server.add("pods", pod("p", 100, scheduler="other"))
        uid = bind(cluster.server, "p", None, LONG_AGO, **{name: text})
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        await goes_on(cluster)


@pytest.mark.parametrize(
    "row",
    [[0, 0, 2**70, 0, ""], [0, 0, 2**62, 0, ""], [0, 0, 1, 2**62, ""], [0, 0, 1, 0, "\ud800"]],
)
async def test_pods_that_claim_more_than_there_can_be_are_charged_what_they_ask(
    row: object,
) -> None:
    async with world() as cluster:
        for name in ("p", "q", "r"):
            cluster.server.add("pods", pod(name, 100, scheduler="other"))
            uid = cluster.server.get("pods", name, "d")["metadata"]["uid"]
            value = json.dumps({"pod": uid, "node": "n", "shares": [row]})
            bind(cluster.server, name, None, LONG_AGO, **{MARK: value})
            await until(partial(cluster.live.engine.ledger.holdings.get, uid))
            shares = cluster.live.engine.ledger.holdings[uid].placement.shares
            assert {share.memory_mib for share in shares} == {100}
        await goes_on(cluster)


def test_deep_marks_are_not_wefts() -> None:
    meta = {"name": "p", "uid": "u", "annotations": {MARK: DEEP}}
    told = {"metadata": meta, "spec": {"nodeName": "n", "containers": []}}
    assert not placed_by_weft(msgspec.convert(told, Pod))


async def test_a_deep_or_endless_inventory_is_that_nodes_alone() -> None:
    async with world() as cluster:
        vast = '{"gpus": [{"index": 0, "memory_mib": 1' + "0" * 18 + "}]}"
        deep = '{"gpus": [], "more": ' + DEEP + "}"
        for name, text in (("deep", deep), ("vast", vast)):
            bad = node(name)
            bad["metadata"]["annotations"] = {"weft.dev/inventory": text}
            cluster.server.add("nodes", bad)
        await goes_on(cluster)


async def test_a_fault_of_ours_in_one_pod_is_told_once_and_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "weft.cluster")

    def nobody_thought_of_this(pod: Any, gone: bool) -> list[Any]:
        if "weft.dev/out-of-memory" in (pod.metadata.annotations or {}):
            raise ZeroDivisionError("at 1")
        return []

    async with world() as cluster:
        monkeypatch.setattr(cluster.live.hooks, "ends", [nobody_thought_of_this])
        made = pod("p", 100, scheduler="other")
        owner = {"controller": True, "kind": "Job", "name": "j", "apiVersion": "batch/v1"}
        made["metadata"]["ownerReferences"] = [{**owner, "uid": "x"}]
        cluster.server.add("pods", made)
        uid = bind(cluster.server, "p", 0, LONG_AGO, memory_mib=100)
        await until(lambda: uid in cluster.live.engine.ledger.holdings)
        for end in "ab":
            marks = {"weft.dev/out-of-memory": json.dumps({"end": end})}
            cluster.server.update("pods", "p", {"metadata": {"annotations": marks}}, "d")
            await until(lambda: cluster.live.pods.faults == ord(end) - ord("a") + 1)  # noqa: B023
        cluster.server.update("pods", "p", {"status": {"phase": "Failed"}}, "d")
        await until(lambda: uid not in cluster.live.engine.ledger.holdings)
        await goes_on(cluster)
    assert [record.getMessage() for record in caplog.records] == [
        "pod d/p cannot be read; this is a mistake in Weft: ZeroDivisionError: at 1"
    ]
