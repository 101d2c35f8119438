"""Straight from exporters: pages read as a server would tell them; one failing leaves others."""

import json

import pytest
from telemetry_world import NOW_S, node

from fakes.exporter import FakeExporter, PlayedGpu
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.meaning.join import Devices, JoinFailure, SeriesJoiner
from weft.telemetry.sources.exporters import ExporterSource, NameIndex, parse
from weft.telemetry.sources.source import SourceReading

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
    (joined,) = SeriesJoiner(Devices([node("a", uuids=False)])).join(found)
    assert joined.rows.tolist() == [1, 0]


def test_a_page_that_is_none_is_an_error() -> None:
    with pytest.raises(TelemetryError, match=r"u: not a valid series") as found:
        parse(f'{USED}{{gpu="1"}} <html>'.encode(), "a", NOW_S, WANTED, "u")
    assert found.value.kind == "garbage"


async def test_one_exporter_that_is_gone_leaves_the_others() -> None:
    gpus = [PlayedGpu("a", index, used_mib=100 * index) for index in range(2)]

    async def story(url: str) -> SourceReading:
        source = ExporterSource(lambda: {"a": url, "b": "http://127.0.0.1:1/metrics"})
        try:
            return await source.read([Metric.MEMORY_USED_MIB], 45)
        finally:
            await source.close()

    with FakeExporter(gpus) as exporter:
        found = await story(exporter.url)
    assert [answer.values.tolist() for answer in found.answers] == [[0.0, 100.0]]
    assert {asked.about: asked.error and asked.error.kind for asked in found.asked} == {
        "a": None,
        "b": "unreachable",
    }


@pytest.mark.parametrize("label", ["Hostname", "hostname", "kubernetes_node", "node", "instance"])
def test_a_page_is_about_the_node_it_was_read_from_whatever_it_says(label: str) -> None:
    page = f'{USED}{{gpu="0",{label}="b"}} 9000\n'.encode()
    found = parse(page, "a", NOW_S, WANTED, "u")
    devices = Devices([node("a", uuids=False), node("b", uuids=False)])
    (joined,) = SeriesJoiner(devices).join(found)
    assert [devices.gpus[row] for row in joined.rows.tolist()] == [("a", 0)]


async def read_of(gpus: list[PlayedGpu], devices: Devices) -> SourceReading:
    """The reading of the exporter of node a."""

    async def story(url: str) -> SourceReading:
        source = ExporterSource(lambda: {"a": url}, known=NameIndex(ALIASES, lambda: devices))
        try:
            return await source.read([Metric.MEMORY_USED_MIB], 45)
        finally:
            await source.close()

    with FakeExporter(gpus) as exporter:
        return await story(exporter.url)


@pytest.mark.parametrize("label", ["UUID", "uuid", "gpu_uuid", "dra_mig_device_uuid"])
@pytest.mark.parametrize("own", [True, False])
async def test_a_card_of_another_node_is_refused_and_counted(label: str, own: bool) -> None:
    """Nor is it taken for the card of the same index on the page's own node."""
    devices = Devices([node("a", uuids=own), node("b")])
    uuid = next(uuid for uuid, row in devices.by_uuid.items() if devices.gpus[row] == ("b", 1))
    mig = {"GPU_I_ID": "1"} if "mig" in label else {}
    gpus = [
        PlayedGpu("a", 0, used_mib=1),
        PlayedGpu("a", 1, used_mib=9, labels={label: uuid} | mig),
    ]
    if own:
        ours = next(uuid for uuid, row in devices.by_uuid.items() if devices.gpus[row] == ("a", 0))
        gpus[0] = PlayedGpu("a", 0, uuid=ours, used_mib=1)
    found = await read_of(gpus, devices)
    joiner = SeriesJoiner(devices)
    (joined,) = [one for answer in found.answers for one in joiner.join(answer)]
    assert [devices.gpus[row] for row in joined.rows.tolist()] == [("a", 0)]
    assert joiner.unjoined == {JoinFailure.NODE: 1}
    told = json.loads(joiner.examples[JoinFailure.NODE])
    assert (told["page"], told["refused"]) == ("a", f"{uuid} belongs to node b")


async def test_a_page_that_trips_the_reader_is_that_pages_error() -> None:
    async def fetch(url: str) -> tuple[int, bytes]:
        if url == "bad":
            raise RecursionError("too deep")
        return 200, f'{USED}{{gpu="0"}} 5'.encode()

    found = await ExporterSource(lambda: {"a": "bad", "b": "good"}, fetch=fetch).read(
        [Metric.MEMORY_USED_MIB], 45
    )
    assert [answer.values.tolist() for answer in found.answers] == [[5.0]]
    (wrong,) = [asked for asked in found.asked if asked.error]
    assert wrong.about == "a"
    assert str(wrong.error) == "bad: RecursionError: too deep"


def test_what_is_no_series_is_shown_short_and_escaped() -> None:
    with pytest.raises(TelemetryError) as found:
        parse(f"{USED} \x1b[2J{'x' * 10_000}".encode(), "a", NOW_S, WANTED, "u")
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    "line",
    [
        f'{USED}{{gpu="1"}} 7 # {{trace_id="a}}b"}} 0.67 1520879607.789',
        f'{USED}{{gpu="1"}} 7 # {{}} 0.67',
        f'{USED}{{gpu="1"}} 7 # {{span="x"}} 0.67\r',
        f' {USED} {{ gpu = "1" , }} 7',
        f'{USED}{{gpu="1",m="#{{}} 9 # {{"}} 7',
    ],
)
def test_what_follows_a_sample_is_not_its_value(line: str) -> None:
    found = parse(f"{line}\n".encode(), "a", NOW_S, WANTED, "u")
    assert (found.values.tolist(), found.times.tolist()) == ([7.0], [NOW_S])
    (labels,) = [json.loads(text) for text in found.labels]
    assert labels["gpu"] == "1"
    assert {"trace_id", "span"}.isdisjoint(labels)


def test_an_exemplar_beside_a_sample_without_asking_is_none_of_it() -> None:
    found = parse(f'{USED} 7 5000 # {{trace_id="x"}} 0.67\n'.encode(), "a", NOW_S, WANTED, "u")
    assert (found.values.tolist(), found.times.tolist()) == ([7.0], [5.0])


def test_an_open_metrics_page_tells_seconds() -> None:
    """The page ends with a line of its own; a label's text is not that line."""
    line = f'{USED}{{gpu="1",m="# EOF"}} 7 1700000000.5'
    (seconds,) = parse(f"{line}\n# EOF\n".encode(), "a", NOW_S, WANTED, "u").times.tolist()
    (milli,) = parse(f"{line}\n".encode(), "a", NOW_S, WANTED, "u").times.tolist()
    assert (seconds, milli) == (1700000000.5, 1700000.0005)


@pytest.mark.parametrize("between", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(between: str) -> None:
    page = f'{USED}{{gpu="1",m="a{between}{USED}{{gpu=\\"0\\"}} 9{between}b"}} 7\n'
    found = parse(page.encode(), "a", NOW_S, WANTED, "u")
    assert found.values.tolist() == [7.0]
    (labels,) = [json.loads(text) for text in found.labels]
    assert (labels["gpu"], labels["m"]) == ("1", f'a{between}{USED}{{gpu="0"}} 9{between}b')


@pytest.mark.parametrize("tail", ['{gpu="1" 7', '{gpu="1} 7', "{ 7", '{gpu="1"} # {a="b"} 7', ""])
def test_a_series_whose_labels_or_value_do_not_end_is_no_series(tail: str) -> None:
    with pytest.raises(TelemetryError, match="not a valid series"):
        parse(f"{USED}{tail}\n".encode(), "a", NOW_S, WANTED, "u")


@pytest.mark.parametrize(
    "line",
    [b'%b{gpu="0",pod="\xff"} 5', b'%b{gpu="0",po\xffd="x"} 5', b'%b{gpu="0"} 5\xff', b"%b \xff{"],
)
def test_a_byte_that_is_no_text_costs_its_own_line_at_most(line: bytes) -> None:
    page = line % USED.encode() + f'\n{USED}{{gpu="1"}} 7\n'.encode()
    found = parse(page, "a", NOW_S, WANTED, "u")
    (joined,) = SeriesJoiner(Devices([node("a", uuids=False)])).join(found)
    assert dict(zip(joined.rows.tolist(), joined.values.tolist(), strict=True))[1] == 7
