"""The pages show pods that ran out of GPU memory, and borrowers that were asked to go."""

from scheduler_world import add_node, add_pod, world

from weft.core.engine import OomHistoryLearnt, OomRecord

OWNER = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
CUDA = {"terminated": {"exitCode": 1, "reason": "Error", "message": "CUDA out of memory"}}
MORE = (
    "charged 2,500 MiB of a GPU or more, and it never borrows: 1.25 × what d/Job/train had or used "
    "when it ran out of GPU memory"
)
ALONE = (
    "charged GPUs of its own, of 9,000 MiB or more: d/Job/train ran out of GPU memory 2 times or "
    "more"
)


async def test_pods_that_a_lesson_charges_say_so() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n", gpus=1)
        await cluster.lead()
        add_pod(cluster.server, "first", 2_000, meta=OWNER)
        await cluster.until(lambda: cluster.bound("first"))
        assert MORE not in (await cluster.explain("first")).notes
        ended = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": CUDA}]}
        cluster.server.update("pods", "first", {"status": ended}, "d")
        await cluster.until(lambda: cluster.parts.ends.count == 1)
        add_pod(cluster.server, "second", 2_000, meta=OWNER)
        await cluster.until(lambda: cluster.bound("second"))
        found = await cluster.explain("second")
        assert MORE in found.notes
        assert found.shares[0].memory_mib == 2_500
        add_pod(cluster.server, "other", 2_000)
        await cluster.until(lambda: cluster.bound("other"))
        assert not [n for n in (await cluster.explain("other")).notes if "charged" in n]
        cluster.live.handle(OomHistoryLearnt({"d/Job/train": OomRecord(2, 9_000)}))
        add_pod(cluster.server, "third", 2_000, meta=OWNER)
        await cluster.until(lambda: cluster.live.pod("d", "third") is not None)
        found = await cluster.explain("third")
        assert (found.state, ALONE in found.notes) == ("pending", True)


async def test_ends_lessons_and_recalls_are_counted() -> None:
    async with world() as cluster:
        add_node(cluster.server, "n")
        await cluster.lead()
        told = await cluster.samples()
        assert told["weft_out_of_gpu_memory_total",] == 0
        assert told["weft_recalls_total", "outcome=evicted"] == 0
        add_pod(cluster.server, "first", 2_000, meta=OWNER)
        await cluster.until(lambda: cluster.bound("first"))
        again = {"name": "c", "restartCount": 1, "lastState": CUDA}
        status = {"phase": "Running", "containerStatuses": [again]}
        cluster.server.update("pods", "first", {"status": status}, "d")
        await cluster.until(lambda: cluster.parts.ends.count == 1)
        cluster.parts.evictor.borrower_counts["blocked"] = 3
        cluster.parts.oom_history.counts["conflict"] = 2
        cluster.parts.oom_history.unreadable.add("README")
        told = await cluster.samples()
        assert told["weft_out_of_gpu_memory_total",] == 1
        assert told["weft_lessons",] == 1
        assert told["weft_lessons_unreadable",] == 1
        assert told["weft_recalls_total", "outcome=blocked"] == 3
        assert told["weft_lessons_writes_total", "outcome=conflict"] == 2
