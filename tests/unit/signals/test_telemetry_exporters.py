"""Straight from exporters: pages read as a server would tell them; one failing leaves others."""

import asyncio

import pytest
from telemetry_world import NOW_S, node

from weft.signals.telemetry.answers import TelemetryError
from weft.signals.telemetry.exporters import Exporters, parse
from weft.signals.telemetry.join import Devices, Joiner
from weft.signals.telemetry.names import Metric
from weft.signals.telemetry.source import Reading
from weft.testing.exporter import FakeExporter, PlayedGpu

USED = "DCGM_FI_DEV_FB_USED"
WANTED = frozenset({USED})


def test_a_page_becomes_series_of_its_node() -> None:
    page = (
        f'# HELP {USED} x\n# TYPE {USED} gauge\n\n{USED}{{gpu="1",m="a\\"b}} c,d=\\"e"}} 12.5\n'
        f'{USED}{{gpu="0"}} 3e2 1700000000500\nother{{gpu="0"}} 5\nplain 7\n'
    ).encode()
    found = parse(page, "a", NOW_S, WANTED, "u")
    assert found.values.tolist() == [12.5, 300.0]
    assert found.times.tolist() == [NOW_S, 1700000000.5]
    (joined,) = Joiner(Devices([node("a", uuids=False)])).join(found)
    assert joined.rows.tolist() == [1, 0]


def test_a_page_that_is_none_is_an_error() -> None:
    with pytest.raises(TelemetryError, match=r"u: no series") as found:
        parse(f'{USED}{{gpu="1"}} <html>'.encode(), "a", NOW_S, WANTED, "u")
    assert found.value.kind == "garbage"


def test_one_exporter_that_is_gone_leaves_the_others() -> None:
    gpus = [PlayedGpu("a", index, used_mib=100 * index) for index in range(2)]

    async def story(url: str) -> Reading:
        source = Exporters(lambda: {"a": url, "b": "http://127.0.0.1:1/metrics"})
        try:
            return await source.read([Metric.MEMORY_USED_MIB], 45)
        finally:
            await source.close()

    with FakeExporter(gpus) as exporter:
        found = asyncio.run(story(exporter.url))
    assert [answer.values.tolist() for answer in found.answers] == [[0.0, 100.0]]
    assert {asked.about: asked.error and asked.error.kind for asked in found.asked} == {
        "a": None, "b": "unreachable",
    }  # fmt: skip
