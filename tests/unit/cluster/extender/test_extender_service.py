"""filter, prioritize, preempt and bind over a cluster in memory."""

import asyncio
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from extender_world import (
    GPUSHARE,
    SCHEDULER,
    WEFT,
    StubCluster,
    args,
    bind_args,
    elastic,
    manifest,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cluster.extender.routes import Route
from weft.cluster.extender.service import Extender, ExtenderReply
from weft.core.engine import Engine, PodSeenBound
from weft.core.framework import Profile, Query
from weft.core.ledger.audit import audit
from weft.core.policies.catalog import built_in
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit
from weft.kube.bind import AlreadyBound, BindRequest, Gated, Gone, NotLeader, Outcome, Unknown
from weft.kube.pods import Pod
from weft.model import PodRequest
from weft.model.reason import TEXT, Code
from weft.testing.builders import node, placement


def two() -> StubCluster:
    return StubCluster([node("n1", gpus=1, memory_mib=1000), node("n2", gpus=2, memory_mib=4000)])


def load(reply: ExtenderReply, code: int = 200) -> Any:
    assert reply.status == code, reply.body
    return json.loads(reply.body)


async def bind(extender: Extender, route: Route, pod: str, where: str, code: int = 200) -> str:
    return str(load(await extender.bind(route, bind_args(pod, where)), code)["Error"])


def test_filter_says_who_fits_and_why_not() -> None:
    cluster = two()
    cluster.handle(PodSeenBound(placement("x", "n2", (0, 1), memory_mib=3500)))
    found = load(Extender(cluster).filter(WEFT, args(elastic(memory=900), ["n2", "n1", "n9"])))
    assert found["NodeNames"] == ["n1"]
    assert found["Nodes"] is None
    assert TEXT[Code.GPU_MEMORY] in found["FailedNodes"]["n2"]
    assert found["FailedNodes"]["n9"] == "node is not known to Weft yet"
    assert found["Error"] == ""


def test_every_sentence_about_a_node_is_about_that_node() -> None:
    sizes = {"n1": 15_109, "n2": 16_160, "n3": 16_160}
    cluster = StubCluster([node(name, gpus=1, memory_mib=mib) for name, mib in sizes.items()])
    cluster.handle(PodSeenBound(placement("x", "n3", 0, memory_mib=9_000)))
    extender, names = Extender(cluster), ["n3", "n1", "n2"]
    found = load(extender.filter(WEFT, args(elastic(memory=20_000), names)))
    assert found["FailedAndUnresolvableNodes"] == {
        name: f"{TEXT[Code.GPU_TOO_SMALL]} (largest {mib:,} MiB, asked 20,000)"
        for name, mib in sizes.items()
    }
    found = load(extender.filter(WEFT, args(elastic("b", memory=15_500), names)))
    assert found["NodeNames"] == ["n2"]
    assert found["FailedNodes"]["n3"].endswith("(largest free 7,160 MiB, asked 15,500)")
    assert "largest 15,109 MiB" in found["FailedAndUnresolvableNodes"]["n1"]


def test_a_pod_that_fits_nowhere_has_come_once_however_often_it_is_asked_about() -> None:
    """Policies with prices make them anew by how many pods came; of this one no bind tells."""
    cluster = two()
    prices = LeastStranding(pods_per_prices=2)
    cluster.engine = Engine([Profile("weft", [prices])], cluster.engine.ledger.table.nodes)
    extender, lists = Extender(cluster), cluster.engine.price_lists
    huge = elastic("huge", memory=20_000)
    assert lists.expects("u-huge")
    for _ in range(3):
        assert load(extender.filter(WEFT, args(huge, ["n1", "n2"])))["NodeNames"] == []
    assert not lists.expects("u-huge")
    made = cluster.engine.assessor.forgotten
    load(extender.filter(WEFT, args(elastic("next", memory=20_000), ["n1"])))
    assert cluster.engine.assessor.forgotten == made + 1


@pytest.mark.parametrize("body", [{"Nodes": None, "NodeNames": None}, {}, {"nodenames": None}])
@pytest.mark.parametrize("route", [WEFT, SCHEDULER, GPUSHARE])
def test_a_filter_without_any_list_is_an_error(route: Route, body: dict[str, Any]) -> None:
    sent = msgspec.json.encode({"Pod": elastic()} | body)
    reply = Extender(two()).filter(route, sent)
    found = load(reply)
    assert "neither Nodes nor NodeNames" in found["Error"]
    assert reply.failed
    assert not found["NodeNames"]


def test_a_filter_with_an_empty_list_has_an_empty_answer() -> None:
    for lists in ({"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {"items": None}}):
        found = load(Extender(two()).filter(WEFT, msgspec.json.encode({"Pod": elastic()} | lists)))
        assert found["Error"] == ""


def asking(scheduler: str, resource: str) -> PodRequest:
    pod = elastic()
    pod["spec"]["schedulerName"] = scheduler
    pod["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    return StubCluster().parse(msgspec.convert(pod, Pod))


@pytest.mark.parametrize(
    ("scheduler", "resource", "decides"),
    [
        ("", "alnair/vgpu-memory", "alnair-cost-saving"),
        ("default-scheduler", "alnair/vgpu-memory", "alnair-cost-saving"),
        ("alnair-high-performance", "alnair/vgpu-memory", "alnair-high-performance"),
        ("custom-scheduler", "alnair/vgpu-memory", "custom-scheduler"),
        ("", "elasticgpu.io/gpu-memory", "mine"),
        ("", "nvidia.com/gpu", "mine"),
    ],
)
def test_a_pod_without_a_profile_gets_its_own_system_s(
    scheduler: str, resource: str, decides: str
) -> None:
    names = ("mine", "alnair-high-performance", "alnair-cost-saving", "custom-scheduler")
    engine = Engine([Profile(name, [BestFit()]) for name in names])
    assert engine.profile_of(asking(scheduler, resource)).name == decides
    engine = Engine([Profile("mine", [BestFit()])])
    assert engine.profile_of(asking(scheduler, resource)).name == "mine"


def test_where_no_preemption_helps_it_says_so() -> None:
    found = load(Extender(two()).filter(WEFT, args(elastic(memory=2000), ["n1", "n2"])))
    assert found["NodeNames"] == ["n2"]
    assert found["FailedNodes"] == {}
    assert TEXT[Code.GPU_TOO_SMALL] in found["FailedAndUnresolvableNodes"]["n1"]


def test_full_nodes_are_answered_with_full_nodes() -> None:
    items = [{"metadata": {"name": name}, "spec": {"kept": name}} for name in ("n1", "n2")]
    body = args(elastic(memory=2000), None, {"metadata": {}, "items": items})
    found = load(Extender(two()).filter(WEFT, body))
    assert found["NodeNames"] is None
    assert found["Nodes"] == {"items": [items[1]], "metadata": {}}


def test_two_systems_in_one_pod_are_an_error_in_the_answer() -> None:
    both = manifest(elasticgpu_io__gpu_memory=1, aliyun_com__gpu_mem=1)
    found = load(Extender(two()).filter(WEFT, args(both, ["n1"])))
    assert "elastic" in found["Error"]
    assert "gpushare" in found["Error"]
    assert found["NodeNames"] is None
    scores = load(Extender(two()).prioritize(WEFT, args(both, ["n1"])))
    assert scores == [{"Host": "n1", "Score": 0}]


def test_scores_are_whole_numbers_up_to_ten() -> None:
    cluster = two()
    for route in (WEFT, SCHEDULER, GPUSHARE):
        found = load(Extender(cluster).prioritize(route, args(elastic(), ["n1", "n2", "n9"])))
        assert [one["Host"] for one in found] == ["n1", "n2", "n9"]
        assert all(type(one["Score"]) is int and 0 <= one["Score"] <= 10 for one in found)


async def test_the_path_decides_the_policy() -> None:
    """gpushare takes the fullest GPU that fits, elastic's binpack the last of the best."""
    for route, gpu in ((GPUSHARE, 0), (SCHEDULER, 1)):
        cluster = StubCluster([node("n", gpus=2, memory_mib=1000)])
        extender = Extender(cluster)
        extender.filter(route, args(elastic(), ["n"]))
        assert await bind(extender, route, "a", "n") == ""
        assert cluster.bound[0].placement.shares[0].gpu == gpu


async def test_what_a_caller_says_at_filter_is_not_booked_at_bind() -> None:
    """Anyone who reaches the port may say that a pod asks less; the API's word counts."""
    cluster = StubCluster([node("n", gpus=1, memory_mib=1000)])
    extender = Extender(cluster)
    for name in "abc":
        honest = msgspec.convert(manifest(name, elasticgpu_io__gpu_memory=600), Pod)
        cluster.known["ns", name] = honest
        extender.filter(WEFT, args(manifest(name, elasticgpu_io__gpu_memory=1), ["n"]))
    assert await bind(extender, WEFT, "a", "n") == ""
    assert "memory" in await bind(extender, WEFT, "b", "n")
    assert cluster.engine.ledger.table.memory_used == [600]


def test_questions_change_nothing() -> None:
    cluster = two()
    extender = Extender(cluster)
    before = cluster.engine.ledger.version
    for name in "abc":
        extender.filter(WEFT, args(elastic(name), ["n1", "n2"]))
        extender.prioritize(WEFT, args(elastic(name), ["n1", "n2"]))
    assert cluster.engine.ledger.version == before
    assert not cluster.engine.ledger.holdings


def test_a_pod_is_parsed_once_for_each_content() -> None:
    extender = Extender(two(), keep_pods=2)
    for _ in range(3):
        extender.filter(WEFT, args(elastic("a"), ["n1"]))
        extender.prioritize(WEFT, args(elastic("a"), ["n1"]))
    assert extender.pods.parsed == 1
    extender.filter(WEFT, args(elastic("a", version="2"), ["n1"]))
    assert extender.pods.parsed == 2
    for name in "bcc":
        extender.filter(WEFT, args(elastic(name), ["n1"]))
    assert extender.pods.parsed == 4
    extender.filter(WEFT, args(elastic("a"), ["n1"]))
    assert extender.pods.parsed == 5, "of three the one asked about first was forgotten"


async def test_bind_books_and_writes_once() -> None:
    cluster = two()
    extender = Extender(cluster)
    extender.filter(WEFT, args(elastic(memory=600), ["n1"]))
    assert await bind(extender, WEFT, "a", "n1") == ""
    assert [one.placement.node for one in cluster.bound] == ["n1"]
    assert cluster.engine.ledger.holdings["u-a"].state == "committed"
    found = load(extender.filter(WEFT, args(elastic(memory=600), ["n1", "n2"])))
    assert found["NodeNames"] == ["n1"], "it may go only where its GPUs are"
    assert "reserved on n1" in found["FailedNodes"]["n2"]


async def test_a_refusal_at_bind_is_normal_and_leaves_nothing() -> None:
    """B was filtered before A was bound: the accounts of now decide."""
    cluster = two()
    extender = Extender(cluster)
    for name in "ab":
        extender.filter(WEFT, args(elastic(name, memory=600), ["n1"]))
    assert await bind(extender, WEFT, "a", "n1") == ""
    assert TEXT[Code.GPU_MEMORY] in await bind(extender, WEFT, "b", "n1")
    assert [*cluster.engine.ledger.holdings] == ["u-a"]
    assert audit(cluster.engine.ledger) == []


@pytest.mark.parametrize(("route", "code"), [(WEFT, 200), (SCHEDULER, 500), (GPUSHARE, 500)])
async def test_only_the_originals_fail_a_bind_with_500(route: Route, code: int) -> None:
    extender = Extender(two())
    assert "does not exist" in await bind(extender, route, "never-seen", "n1", code)
    for body in (b"{}", b"{", b"[]"):
        assert load(await extender.bind(route, body), code)["Error"]


async def test_a_pod_that_only_the_watch_saw_can_be_bound() -> None:
    cluster = two()
    cluster.known["ns", "a"] = msgspec.convert(elastic("a"), Pod)
    assert await bind(Extender(cluster), WEFT, "a", "n1") == ""
    cluster.known["ns", "b"] = msgspec.convert(elastic("other"), Pod)
    assert "does not exist" in await bind(Extender(cluster), WEFT, "b", "n1")


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (AlreadyBound("n2"), "bound to n2"),
        (Gone("there is no such pod"), "no such pod"),
        (Gated(("hold",)), "gates: hold"),
        (NotLeader(), "this Weft process's lease would expire"),
    ],
)
async def test_what_became_of_the_binding_is_said(outcome: Outcome, says: str) -> None:
    cluster = two()
    cluster.outcome = lambda _: outcome
    extender = Extender(cluster)
    extender.filter(WEFT, args(elastic(), ["n1"]))
    assert says in await bind(extender, WEFT, "a", "n1")
    assert not cluster.engine.ledger.holdings


async def test_an_unsettled_binding_is_no_success() -> None:
    cluster = two()
    request = BindRequest("ns", "a", "u-a", "n1", lambda: "")
    cluster.outcome = lambda _: Unknown(request, "", 0.0, "cut")
    extender = Extender(cluster)
    extender.filter(WEFT, args(elastic(), ["n1"]))
    assert "did not answer" in await bind(extender, WEFT, "a", "n1")


async def test_before_it_knows_the_cluster_it_answers_with_an_error() -> None:
    cluster = two()
    cluster.ready = False
    extender = Extender(cluster)
    assert "still reading" in load(extender.filter(WEFT, args(elastic(), ["n1"])))["Error"]
    assert "still reading" in await bind(extender, WEFT, "a", "n1")
    cluster.ready = True
    assert load(extender.filter(WEFT, args(elastic(), ["n1"])))["NodeNames"] == ["n1"]


async def test_while_nobody_leads_a_bind_waits_a_moment_and_then_says_just_that() -> None:
    cluster = two()
    cluster.leadership.end()
    extender = Extender(cluster, leads_within_s=0.01)
    load(extender.filter(WEFT, args(elastic(), ["n1"])))
    error = await bind(extender, WEFT, "a", "n1")
    assert error == "no Weft process leads yet; ask again in some seconds"
    assert not cluster.bound


async def test_a_bind_that_comes_just_before_this_process_leads_is_carried_out() -> None:
    cluster = two()
    cluster.leadership.end()
    extender = Extender(cluster)
    load(extender.filter(WEFT, args(elastic(), ["n1"])))
    asked = asyncio.ensure_future(extender.bind(WEFT, bind_args("a", "n1")))
    await asyncio.sleep(0)
    assert not asked.done()
    cluster.leadership.begin()
    assert load(await asked) == {"Error": ""}
    assert [command.pod.name for command in cluster.bound] == ["a"]


def preempt(extender: Extender, pod: dict[str, Any], victims: Any, full: bool = False) -> Any:
    names = ("NodeNameToVictims", "NodeNameToMetaVictims")
    used, other = names if full else reversed(names)
    body = msgspec.json.encode({"Pod": pod, used: victims, other: None})
    return load(extender.preempt(WEFT, body))["NodeNameToMetaVictims"]


def test_victims_whose_gpus_do_not_help_are_not_offered() -> None:
    cluster = two()
    cluster.handle(PodSeenBound(placement("small", "n2", 0, memory_mib=100)))
    cluster.handle(PodSeenBound(placement("big", "n2", 0, memory_mib=3000)))
    cluster.handle(PodSeenBound(placement("full", "n2", 1, memory_mib=4000)))
    extender, pod = Extender(cluster), elastic(memory=2000)
    for uids, kept in ((["small"], False), (["big"], True), (["full"], True), (["who"], False)):
        asked = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1}
        assert preempt(extender, pod, {"n2": asked}) == ({"n2": asked} if kept else {})
    whole = {"Pods": [{"metadata": {"uid": "big", "name": "b"}}], "NumPDBViolations": 0}
    assert preempt(extender, pod, {"n2": whole, "n1": whole}, full=True) == {
        "n2": {"Pods": [{"UID": "big"}], "NumPDBViolations": 0}
    }
    assert len(cluster.engine.ledger.holdings) == 3


async def test_an_empty_request_is_told_so() -> None:
    extender = Extender(two())
    for ask in (extender.filter, extender.prioritize, extender.preempt):
        assert load(ask(WEFT, b""), 400) == {"Error": "Please send a request body"}
    assert load(await extender.bind(SCHEDULER, b""), 400)["Error"]


amounts = st.integers(1, 1200)


@settings(max_examples=40)
@given(st.lists(st.tuples(amounts, st.sampled_from(["n1", "n2"])), max_size=25))
async def test_whatever_is_bound_no_gpu_runs_over(asks: list[tuple[int, str]]) -> None:
    """All filtered first, then all bound at once."""
    cluster = two()
    extender = Extender(cluster)
    for number, (memory, _) in enumerate(asks):
        extender.filter(WEFT, args(elastic(f"p{number}", memory=memory), ["n1", "n2"]))

    bodies = [bind_args(f"p{number}", where) for number, (_, where) in enumerate(asks)]
    replies = await asyncio.gather(*(extender.bind(WEFT, body) for body in bodies))
    assert audit(cluster.engine.ledger) == []
    bound = sum(not load(reply)["Error"] for reply in replies)
    assert bound == len(cluster.bound) == len(cluster.engine.ledger.holdings)


async def test_gpushare_is_answered_and_bound_by_the_unit_of_each_node() -> None:
    cards = {"gpus": 1, "memory_mib": 16_384}
    nodes = [node("gib", unit_mib=1024, **cards), node("mib", unit_mib=1, **cards)]
    cluster = StubCluster(nodes, unit="node")
    extender, table = Extender(cluster), cluster.engine.ledger.table
    large = args(manifest("large", aliyun_com__gpu_mem=9_000), ["gib", "mib"])
    answer = msgspec.json.decode(extender.filter(GPUSHARE, large).body)
    assert answer["NodeNames"] == ["mib"]
    twelve = args(manifest("twelve", aliyun_com__gpu_mem=12), ["gib", "mib"])
    answer = msgspec.json.decode(extender.filter(GPUSHARE, twelve).body)
    assert answer["NodeNames"] == ["gib", "mib"]
    for name, on in (("large", "mib"), ("twelve", "gib")):
        reply = await extender.bind(GPUSHARE, bind_args(name, on))
        assert reply.status == 200, reply.body
    assert table.memory_used == [12 * 1024, 9_000]


def test_a_mistake_of_ours_about_one_pod_is_that_pod_s_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = two()
    extender = Extender(cluster)

    def broken(*_: object, **__: object) -> None:
        raise OverflowError("too large")

    whole = cluster.engine.assess
    monkeypatch.setattr(cluster.engine, "assess", broken)
    found = load(extender.filter(WEFT, args(elastic(memory=900), ["n1"])))
    assert found["Error"] == "answering about this pod failed: OverflowError: too large"
    scored = load(extender.prioritize(WEFT, args(elastic(memory=900), ["n1"])))
    assert [one["Score"] for one in scored] == [0]
    assert cluster.faults.count == 2
    monkeypatch.setattr(cluster.engine, "assess", whole)
    assert load(extender.filter(WEFT, args(elastic(memory=900), ["n1"])))["NodeNames"] == ["n1"]


async def test_a_wrong_answer_of_a_policy_is_told_counted_and_binds_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = two()
    extender, whole = Extender(cluster), BestFit.score_nodes

    def halves(self: BestFit, query: Query) -> Any:
        return np.full(query.n, 0.5)

    monkeypatch.setattr(BestFit, "score_nodes", halves)
    mistake = "policy best-fit, score_nodes: returned 0.5 (float64) for node n1; return whole"
    found = load(extender.filter(WEFT, args(elastic(memory=900), ["n1"])))
    assert found["Error"].startswith(f"answering about this pod failed: {mistake}")
    assert cluster.faults.count == 1
    assert caplog.messages[0].endswith("this is a mistake in policy best-fit")
    monkeypatch.setattr(BestFit, "score_nodes", whole)
    assert load(extender.filter(WEFT, args(elastic(memory=900), ["n1"])))["NodeNames"] == ["n1"]


def of_containers(name: str, count: int) -> dict[str, Any]:
    made = manifest(name)
    made["spec"]["containers"] = [
        {"name": f"c{i}", "resources": {"limits": {"elasticgpu.io/gpu-memory": str(100 + i)}}}
        for i in range(count)
    ]
    return made


def test_a_pod_of_thousands_of_containers_ends_no_answers() -> None:
    extender = Extender(two())
    found = load(extender.filter(WEFT, args(of_containers("vast", 5_000), ["n1", "n2"])))
    assert found["Error"].startswith("spec.containers: 5,000 containers ask for GPUs")
    found = load(extender.filter(WEFT, args(of_containers("few", 17), ["n1", "n2"])))
    assert found["NodeNames"] == ["n2"]


def test_elastics_own_scores_are_told_as_they_are_and_others_up_to_ten() -> None:
    """Two cards of 15,109 MiB, 5,000 in use on the first: the original says 131,400."""
    nodes = [node("n", gpus=2, memory_mib=15_109), node("m", gpus=1)]
    for compat, scores in (("exact", [131_400, 0]), ("sane", [10, 0])):
        policy = built_in().create("elastic-binpack", compat=compat)
        cluster = StubCluster()
        cluster.engine = Engine([Profile("elastic-binpack", [policy])], nodes)
        cluster.handle(PodSeenBound(placement("x", "n", 0, memory_mib=5_000)))
        told = load(Extender(cluster).prioritize(SCHEDULER, args(elastic(), ["n", "m"])))
        assert [one["Score"] for one in told] == scores
