"""All parts see the same GPUs, one reading after the other, and hear of each change."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from test_fake_devices import A100, written

from weft.node.agent.agent_metrics import DeviceMetrics
from weft.node.agent.device_watch import DeviceWatch
from weft.node.devices.fake import FakeReader
from weft.node.devices.reader import DeviceReader


@pytest.fixture
def fake(tmp_path: Path) -> FakeReader:
    return FakeReader(written(tmp_path, f"gpus: [{A100}}}]"), "n1")


async def test_changes_are_counted_and_waited_for(fake: FakeReader, tmp_path: Path) -> None:
    watch = DeviceWatch(fake, period_s=0.005)
    run = asyncio.create_task(watch.run())
    version = await watch.changed(0)
    assert [device.gpu.index for device in watch.devices] == [0]
    written(tmp_path, f"gpus: [{A100}, xids: [79]}}]")
    version = await watch.changed(version)
    assert watch.devices[0].fault == "XID 79: fallen off the bus"
    (tmp_path / "fake.yaml").unlink()
    version = await watch.changed(version)
    assert "cannot be read" in watch.problem
    written(tmp_path, f"gpus: [{A100}, count: 2}}]")
    assert await watch.changed(version) == version + 1
    assert (watch.problem, len(watch.devices), watch.failures > 0) == ("", 2, True)
    assert watch.by_index(1) is watch.devices[1]
    assert watch.by_index(2) is None
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run


async def test_gpus_that_cannot_be_read_are_known_and_out_of_service(
    fake: FakeReader, tmp_path: Path
) -> None:
    watch = DeviceWatch(fake)
    await watch.read()
    (tmp_path / "fake.yaml").unlink()
    await watch.read()
    (device,) = watch.devices
    assert (device.gpu.in_service, device.gpu.memory_mib) == (False, 40_460)
    assert "No such file" in device.fault
    version = watch.version
    await watch.read()
    assert watch.version == version  # the same again is no change


async def test_a_driver_that_never_answered_shows_no_gpu_and_a_problem(
    fake: FakeReader, tmp_path: Path
) -> None:
    watch = DeviceWatch(fake)
    (tmp_path / "fake.yaml").unlink()
    await watch.read()
    assert (watch.devices, watch.version) == ((), 1)
    assert "No such file" in watch.problem
    assert metrics_of(watch) == {
        "weft_agent_gpus_readable": 0,
        "weft_agent_gpu_reading_failures": 1,
    }
    written(tmp_path, f"gpus: [{A100}}}]")
    await watch.read()
    assert metrics_of(watch) == {
        "weft_agent_gpus_readable": 1,
        "weft_agent_gpu_reading_failures": 1,
    }


def metrics_of(watch: DeviceWatch) -> dict[str, float]:
    """Metrics of the machine's GPUs on the agent's page."""
    return {family.name: family.samples[0].value for family in DeviceMetrics(watch).collect()}


async def test_every_question_is_asked_on_one_thread(fake: FakeReader) -> None:
    def where(_: DeviceReader) -> int:
        return threading.get_ident()

    watch = DeviceWatch(fake)
    found = await asyncio.gather(*(watch.ask(where) for _ in range(5)))
    assert len(set(found)) == 1
    assert found[0] != threading.get_ident()


async def test_the_reader_is_closed_in_the_end(fake: FakeReader) -> None:
    closed: list[bool] = []
    fake.close = lambda: closed.append(True)  # type: ignore[method-assign]
    watch = DeviceWatch(fake, period_s=0.005)
    run = asyncio.create_task(watch.run())
    await watch.changed(0)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert closed == [True]
