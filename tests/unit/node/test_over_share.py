"""Pods over their share are told once, when it lasts; and evicted where that is wanted."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from usage_world import SERVE, TRAIN, Machine, record

from weft.kube.errors import ApiError, LostError, NotFoundError
from weft.kube.structs import ApiStatus
from weft.node.agent.over_share import OverShareOptions

CARDS = "[{model: H100, memoryMiB: 81559, count: 2}]"
TOLD = "train: The pod holds 8600 MiB of GPU 0, 600 MiB more than its share of 8000 MiB"


def machine_of(folder: Path, mib: int, options: OverShareOptions | None = None) -> Machine:
    machine = Machine(folder, CARDS, options)
    machine.pods.add(TRAIN, "train", record(TRAIN, gpu0=8000, gpu1=20_000), "main", "sidecar")
    machine.of_pod(0, mib - 100, TRAIN, "main")
    machine.of_pod(0, 100, TRAIN, "sidecar")
    return machine


async def test_what_lasts_is_told_once_and_shown_while_it_lasts(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, 8600)
    await machine.read()
    await machine.read(after_s=9)
    assert (machine.guard.over, machine.notes) == ((), [])
    for _ in range(3):
        await machine.read(after_s=1)
    assert machine.notes == [TOLD]
    assert [(o.gpu, o.used_mib, o.share_mib) for o in machine.guard.over] == [(0, 8600, 8000)]
    assert machine.evicted == []
    machine.processes.pop(0)  # it gives most back
    await machine.read(after_s=1)
    assert (machine.guard.over, machine.guard.reports) == ((), 1)


async def test_a_peak_that_ends_starts_the_time_anew(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, 8600)
    large = machine.processes[0]
    await machine.read()
    machine.processes[0] = large.replace("8500", "10")
    await machine.read(after_s=6)
    machine.processes[0] = large
    await machine.read(after_s=1)
    await machine.read(after_s=9)
    assert machine.notes == []
    await machine.read(after_s=1)
    assert machine.notes == [TOLD]


@pytest.mark.parametrize("mib", [8512, 8000])
async def test_a_context_is_within_the_margin(tmp_path: Path, mib: int) -> None:
    machine = machine_of(tmp_path, mib)
    await machine.read()
    await machine.read(after_s=60)
    assert machine.guard.over == ()


async def test_of_a_large_share_the_margin_is_a_part(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, 200)
    machine.of_pod(1, 21_000, TRAIN, "main")
    await machine.read()
    await machine.read(after_s=60)
    assert machine.guard.over == ()
    machine.of_pod(1, 1, TRAIN, "main")
    await machine.read()
    await machine.read(after_s=60)
    assert [o.gpu for o in machine.guard.over] == [1]


async def test_who_was_promised_nothing_exceeds_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, CARDS)
    machine.pods.add(TRAIN, "cores-only", record(TRAIN, gpu0=0), "main")
    machine.pods.add(SERVE, "foreign", None, "web")
    machine.of_pod(0, 9000, TRAIN, "main")
    machine.of_pod(0, 9000, SERVE, "web")
    await machine.read()
    await machine.read(after_s=60)
    assert machine.guard.over == ()
    page = "\n".join(map(str, machine.metrics.collect()))
    assert "'of': 'a share'" in page
    assert "'of': 'no share'" in page


@pytest.mark.parametrize(
    ("refusal", "outcome"),
    [
        (None, "evicted"),
        (ApiError(ApiStatus(code=429)), "blocked"),
        (NotFoundError(ApiStatus(code=404)), "gone"),
        (ApiError(ApiStatus(code=403)), "failed"),
        (LostError("no answer"), "failed"),
    ],
)
async def test_evicted_only_if_configured_and_tried_again_later(
    tmp_path: Path, refusal: Exception | None, outcome: str
) -> None:
    machine = machine_of(tmp_path, 8600, OverShareOptions(evict=True))
    machine.refusal = refusal
    run = asyncio.create_task(machine.guard.run())
    await machine.read()
    for after_s in (10, 1, 28):  # 30 s after the first try there is another
        await machine.read(after_s=after_s)
        await asyncio.sleep(0)
    assert machine.guard.evictions == {outcome: 1}
    await machine.read(after_s=1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert machine.guard.evictions == {outcome: 2}
    assert machine.notes == [f"{TOLD}; it is evicted"]
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
