"""Parts of a process that run in the background."""

import asyncio

import pytest

from weft.host.shell import Background


async def _breaks_off() -> None:
    raise ZeroDivisionError("of its own")


async def test_a_part_that_breaks_off_is_told(caplog: pytest.LogCaptureFixture) -> None:
    part = Background("reading GPU telemetry", _breaks_off)
    await part.start()
    while not caplog.records:
        await asyncio.sleep(0)
    assert "reading GPU telemetry" in caplog.text
    assert "of its own" in caplog.text
    await part.close()


async def test_a_part_that_is_closed_is_not(caplog: pytest.LogCaptureFixture) -> None:
    part = Background("reading GPU telemetry", lambda: asyncio.sleep(3600))
    await part.start()
    await asyncio.sleep(0)
    await part.close()
    assert not caplog.records
