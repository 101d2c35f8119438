"""`weft explain pod` of a live cluster: every state a pod can be in, and what would help."""

from scheduler_world import MIB, add_node, add_pod, world

from weft.cluster.scheduler.explain_service import Explainer, SearchOptions
from weft.core.ledger import RequestLimits
from weft.model.queue_rules import QueueRules
from weft.model.reason import TEXT, Code


async def test_a_pod_that_is_bound_says_where_and_who_decided() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "p", 4_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        found = await cluster.explain("p")
        assert (found.state, found.node, found.profile, found.attempt) == ("bound", "n", "weft", 1)
        assert [(share.gpu, share.memory_mib) for share in found.shares] == [(0, 4_000)]
        assert found.text.startswith("is bound on n, GPU 0 (0 % of cores, 4,000 MiB); profile weft")
        assert "best-fit" in found.text


async def test_a_bound_pod_has_the_best_nodes_of_now_with_its_own_shares_free() -> None:
    """The scheduler's process, and one that did not decide: as a console does after a restart."""
    async with world() as cluster:
        for name in ("n", "other"):
            add_node(cluster.server, name, gpus=1)
        add_pod(cluster.server, "p", 4_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        decided = await cluster.explain("p")
        assert decided.rescored
        assert {each.node for each in decided.candidates} == {"n", "other"}
        cluster.live.engine.placed.clear()
        alone = await cluster.explain("p")
        assert (alone.candidates, alone.score_parts) == (decided.candidates, decided.score_parts)
        assert alone.attempt == 0
        add_pod(cluster.server, "fills", 16_000)
        await cluster.until(lambda: cluster.bound("fills"))
        (best,) = (await cluster.explain("p")).candidates
        assert best.node == alone.node, "where it is, its own share counts as free"


async def test_a_pod_that_others_bound_says_what_is_charged() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "p", 4_000, by="default-scheduler", nodeName="n")
        add_pod(cluster.server, "ours", 100, nodeName="n")
        await cluster.lead()
        found = await cluster.explain("p")
        assert found.state == "bound"
        assert "default-scheduler bound it" in found.text
        assert len(found.shares) == 2
        assert found.notes == (
            "it does not name its GPUs: its share is charged on every card of its node",
        )
        assert (
            "Weft bound it before this process became leader"
            in (await cluster.explain("ours")).text
        )


async def test_a_pod_whose_marks_contradict_its_node_says_so() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n", gpus=1)
        units = {"aliyun.com/gpu-mem": "16000", "aliyun.com/gpu-count": "1"}
        cluster.server.update("nodes", "n", {"status": {"capacity": units}})
        marks = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_DEV": "15"}
        asks = {"limits": {"aliyun.com/gpu-mem": "8"}}
        add_pod(
            cluster.server,
            "p",
            by="default-scheduler",
            meta={"annotations": marks},
            nodeName="n",
            containers=[{"name": "c", "resources": asks}],
        )
        await cluster.lead()
        (note,) = (await cluster.explain("p")).notes
        assert note.startswith("it asks for 8 aliyun.com/gpu-mem: its node counts in MiB, its")


async def test_a_pod_that_fits_nowhere_says_why_and_what_would_help() -> None:
    async with world() as cluster:
        add_node(cluster.server, "a", gpus=1)
        add_node(cluster.server, "b", gpus=1)
        add_node(cluster.server, "plain", gpus=0)
        for number in range(2):
            add_pod(cluster.server, f"p{number}", 10_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p0") and cluster.bound("p1"))
        uid = add_pod(cluster.server, "waits", 8_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)
        found = await cluster.explain("waits")
        assert (found.state, found.text, found.attempt) == ("pending", "fits nowhere", 1)
        assert found.reason == (
            f"0/2 GPU nodes: 2 × {TEXT[Code.GPU_MEMORY]} (largest free 6,000 MiB, asked 8,000)"
        )
        assert [change.axis for change in found.changes] == ["memory", "free"]
        assert found.changes[0].text == ("request at most 6,000 MiB of GPU memory instead of 8,000")
        assert "end pod d/p" in found.changes[1].text
        assert found.searched
        assert not [note for note in found.notes if "preemption" in note]
        assert cluster.live.engine.ledger.table.memory_used == [10_000, 10_000], "only tried"


async def test_a_pod_whom_the_kubelet_would_refuse_is_told_so() -> None:
    async with world(limits=RequestLimits(overcommit_permille=2000)) as cluster:
        add_node(cluster.server, "a", gpus=1, advertised_mib=MIB)
        add_node(cluster.server, "b", gpus=1, advertised_mib=MIB + 100)
        for number in range(2):
            add_pod(cluster.server, f"p{number}", 10_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p0") and cluster.bound("p1"))
        uid = add_pod(cluster.server, "waits", 8_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)
        found = await cluster.explain("waits")
        assert found.reason == (
            f"0/2 GPU nodes: 2 × {TEXT[Code.EXTENDED]} "
            "(largest free 6,100 weft.dev/gpu-memory, asked 8,000)"
        )
        assert found.notes == (
            "weft.dev/gpu-memory: 8,000 asked, 6,100 left of 16,100 that a device plugin "
            "advertises on b. The kubelet admits no pod beyond that, so memory is lent only "
            "within it",
        )
        assert [change.axis for change in found.changes] == ["extended", "free"]
        less = "request at most 6,100 of weft.dev/gpu-memory instead of 8,000"
        assert found.changes[0].text == less


async def test_preemption_that_would_help_is_said_to_be_missing() -> None:
    """The victim that is named is one of lower priority, though a smaller pod is there."""

    async with world() as cluster:
        add_node(cluster.server, "a", gpus=1)
        add_node(cluster.server, "b", gpus=1)
        await cluster.lead()
        add_pod(cluster.server, "low", 15_000, priority=1)
        await cluster.until(lambda: cluster.bound("low"))
        add_pod(cluster.server, "high", 10_000, priority=100)
        await cluster.until(lambda: cluster.bound("high"))
        for name, priority, policy in (
            ("wants", 50, None),
            ("polite", 50, "Never"),
            ("small", 1, None),
        ):
            uid = add_pod(cluster.server, name, 12_000, priority=priority, preemptionPolicy=policy)
            await cluster.until(lambda uid=uid: uid in cluster.live.engine.queue)
        (note,) = (await cluster.explain("wants")).notes
        assert note.startswith("its profile does not preempt: ending d/low, of lower priority")
        assert "kube-scheduler with Weft as its extender" in note
        assert (await cluster.explain("polite")).notes == ()
        assert (await cluster.explain("small")).notes == ()


async def test_in_fair_order_no_pod_of_another_queue_is_said_to_be_preempted() -> None:
    async with world(queues=QueueRules("fair")) as cluster:
        add_node(cluster.server, "a", gpus=1)
        await cluster.lead()
        low = {"labels": {"weft.dev/queue": "other"}}
        add_pod(cluster.server, "low", 15_000, priority=1, meta=low)
        await cluster.until(lambda: cluster.bound("low"))
        for name, queue in (("stranger", "own"), ("alike", "other")):
            meta = {"labels": {"weft.dev/queue": queue}}
            uid = add_pod(cluster.server, name, 12_000, priority=50, meta=meta)
            await cluster.until(lambda uid=uid: uid in cluster.live.engine.queue)
        assert (await cluster.explain("stranger")).notes == ()
        (note,) = (await cluster.explain("alike")).notes
        assert note.startswith("its profile does not preempt: ending d/low, of lower priority")


async def test_a_pod_that_waits_though_there_is_room_names_the_best_nodes() -> None:
    """A follower sees the room that the leader will use."""

    async with world() as cluster:
        add_node(cluster.server, "a", gpus=1)
        add_node(cluster.server, "b", gpus=1)
        add_pod(cluster.server, "held", 6_000, by="x", nodeName="b")
        add_pod(cluster.server, "p", 4_000)
        await cluster.live.start()
        found = await cluster.explain("p")
        assert (found.state, found.leader) == ("pending", False)
        assert found.reason == "2/2 GPU nodes fit"
        assert sorted(one.node for one in found.candidates) == ["a", "b"]
        assert found.candidates[0].score >= found.candidates[1].score
        assert found.candidates[0].scores == {"best-fit": found.candidates[0].score}
        assert found.notes == ("this process is not the leader; the leader decides",)
        await cluster.live.lead()
        await cluster.until(lambda: cluster.bound("p"))
        assert (await cluster.explain("p")).node == found.candidates[0].node


async def test_states_in_which_nothing_is_decided() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        cluster.server.access.denied.add(("list", "namespaces"))
        add_pod(cluster.server, "gated", 4_000, schedulingGates=[{"name": "one"}, {"name": "two"}])
        add_pod(cluster.server, "bad", "much")
        add_pod(cluster.server, "other", 4_000, by="default-scheduler")
        add_pod(cluster.server, "over", 4_000, nodeName="n")
        cluster.server.update("pods", "over", {"status": {"phase": "Failed"}}, "d")
        elsewhere = {"matchLabels": {"team": "a"}}
        term = {"topologyKey": "kubernetes.io/hostname", "namespaceSelector": elsewhere}
        near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        add_pod(cluster.server, "near", 4_000, affinity=near)
        going = {"finalizers": ["x/y"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        add_pod(cluster.server, "going", 4_000, meta=going)
        await cluster.lead()
        gated = await cluster.explain("gated")
        assert (gated.state, "one, two" in gated.text) == ("gated", True)
        bad = await cluster.explain("bad")
        assert (bad.state, "much" in bad.text) == ("bad", True)
        other = await cluster.explain("other")
        assert other.state == "not ours"
        assert "default-scheduler" in other.text
        assert other.notes == (
            "schedulerNames that Weft serves here: weft",
            "as an extender Weft would answer: 1/1 GPU nodes fit",
        )
        over = await cluster.explain("over")
        assert (over.state, over.text) == ("ended", "has ended (Failed) and holds nothing")
        near_ = await cluster.explain("near")
        assert near_.state == "unsupported"
        assert "Weft has no permission to list and watch namespaces" in near_.text
        assert "run this pod through kube-scheduler" in near_.text
        assert near_.reason == f"0/1 GPU nodes: 1 × {TEXT[Code.UNSUPPORTED]}"
        assert near_.changes == ()
        assert (await cluster.explain("going")).state == "deleted"
        status, text = await cluster.get("/explain/pods/d/missing")
        assert (status, "there is no pod d/missing" in text) == (404, True)


async def test_pods_on_dead_nodes_are_named_where_a_pod_waits_for_a_gpu() -> None:
    async with world() as cluster:
        add_node(cluster.server, "dead", gpus=1, ready=False)
        add_node(cluster.server, "n", gpus=1)
        add_pod(cluster.server, "ghost", MIB, nodeName="gone", by="x")
        add_pod(cluster.server, "stuck", MIB, nodeName="dead", by="x")
        add_pod(cluster.server, "waits", 2 * MIB)
        add_pod(cluster.server, "plain", nodeSelector={"no": "where"})
        await cluster.lead()
        found = await cluster.explain("waits")
        assert [(one.name, one.node, one.dead_node) for one in found.stuck] == [
            ("stuck", "dead", True)
        ]
        assert any("1 GPU held by pods of dead nodes: d/stuck" in note for note in found.notes)
        assert (await cluster.explain("plain")).stuck == ()
        assert [one.name for one in (await cluster.explain("stuck")).stuck] == ["stuck"]
        ghost = await cluster.explain("ghost")
        assert "node gone is gone" in ghost.notes[0]


async def test_a_search_that_takes_too_long_ends_and_says_so() -> None:
    """With a clock by which every look at it takes 10 ms, and time for a few trials only."""

    async with world() as cluster:
        add_node(cluster.server, "a", gpus=1)
        add_pod(cluster.server, "held", 10_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("held"))
        uid = add_pod(cluster.server, "waits", 8_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)
        now = iter(range(1_000_000))
        explainer = Explainer(
            cluster.live,
            cluster.parts.guard,
            None,
            SearchOptions(0.005, 0.1),
            lambda: next(now) / 100,
        )
        found = await explainer.explain("d", "waits")
        assert found is not None
        assert (found.state, found.searched, found.changes) == ("pending", False, ())
        assert (await cluster.explain("waits")).searched


async def test_what_a_pod_says_wrongly_of_itself_is_a_note_before_and_after_it_is_bound() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        marks = {
            "weft.dev/class": "latency-critical",
            "weft.dev/slo-ms": "80",
            "weft.dev/solo-p99-ms": "soon",
        }
        for name, mib in (("bound", 4_000), ("waits", 99_000)):
            add_pod(cluster.server, name, mib, meta={"annotations": marks})
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("bound"))
        for name, state in (("bound", "bound"), ("waits", "pending")):
            found = await cluster.explain(name)
            assert found.state == state
            (note,) = [one for one in found.notes if "weft.dev/solo-p99-ms" in one]
            assert "'soon'" in note
