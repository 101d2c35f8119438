"""The console shows what its pictures show in tables too, and all of it can be taken along."""

import csv
import io
import struct
from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import quote

import pytest
from chromium import Window
from shown import check, eventually, opened, served
from test_console_in_chromium import TAKE, WIDTHS, scrolls_sideways
from test_console_views import live, violations
from test_recorded_days import record

from weft.console.picture import Picture, ShownGpu, ShownNode, ShownPod, ShownShare, ShownWaiting
from weft.console.sources import Kind
from weft.console.waiting import WAITS_FOR_GROUP
from weft.core.explain.explanation import Explanation

__all__ = ["live", "record"]


class FixedSource:
    """A source of one picture."""

    kind: Kind = "snapshot"
    about = "fixed"
    lives = False

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def picture(self) -> Picture:
        return self._picture

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        return None


def two_gpus() -> Picture:
    """A GPU with half of its free part stranded, whose memory is promised beyond its size; and one
    that nobody measures."""
    gpu = ShownGpu(
        "n1",
        0,
        "A100",
        memory_mib=40_000,
        promised_mib=42_000,
        free_mib=10_000,
        milli=1000,
        promised_milli=750,
        free_milli=250,
        pods=1,
        idle_mib=5_000,
        lent_mib=2_000,
        used_mib=30_000,
        used_percent=61,
        celsius=57,
    )
    other = ShownGpu("n1", 1, "A100", memory_mib=40_000, free_mib=40_000, milli=1000)
    shares = (ShownShare(0, 42_000, 750, 5_000, 2_000),)
    pod = ShownPod("u1", "ml", "train", "n1", shares, since_s=60.0)
    return Picture(
        100.0,
        nodes={"n1": ShownNode("n1", "A100", idle_milli=250, stranded_milli=125)},
        gpus={"n1/0": gpu, "n1/1": other},
        pods={"u1": pod},
    )


SHADED = {
    "free": ("Memory free", "10,000 MiB", "39.1 GiB"),
    "stranded": ("Free and stranded", "12.5 %", "0 %"),
    "lent": ("Memory lent", "2,000 MiB", "0 MiB"),
    "busy": ("Busy", "61 %", "not measured"),
    "temperature": ("Temperature", "57 °C", "not measured"),
    "pods": ("Number of pods", "1", "0"),
}


def table_of(window: Window, within: str) -> list[dict[str, str]]:
    """The rows of a table, by their columns."""
    found: list[dict[str, str]] = eventually(
        window,
        f"""(table => table?.tBodies[0].rows.length && (head => [...table.tBodies[0].rows]
            .map(row => Object.fromEntries([...row.cells].map((cell, n) =>
                [head[n], cell.textContent]))))
            ([...table.tHead.rows[0].cells].map(cell => cell.textContent))
        )(document.querySelector('{within} table'))""",
    )
    return found


def csv_of(window: Window) -> list[Mapping[str, str]]:
    """Press the button and return the rows of what it saves."""
    window.run(TAKE)
    window.run(
        "[...document.querySelectorAll('#take button')].find(b => b.innerText === 'CSV').click()"
    )
    return [*csv.DictReader(io.StringIO(window.run("window.taken.blob.text()")))]


def png_of(window: Window) -> tuple[str, int, int]:
    """The name, width and height of what the button saves."""
    window.run(TAKE)
    window.run(
        "[...document.querySelectorAll('#take button')].find(b => b.innerText === 'PNG').click()"
    )
    eventually(window, "window.taken.name && !!window.taken.blob")
    data = b64decode(
        window.run(
            "new Promise(done => { const reader = new FileReader();"
            " reader.onload = () => done(reader.result.split(',')[1]);"
            " reader.readAsDataURL(window.taken.blob); })"
        )
    )
    width, height = struct.unpack(">II", data[16:24])
    return window.run("window.taken.name"), width, height


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_map_is_coloured_by_is_in_its_table_its_tip_and_its_csv(
    window: Window, width: int
) -> None:
    with served(FixedSource(two_gpus())) as url:
        for shade, (head, first, second) in SHADED.items():
            opened(window, f"{url}/map?shade={shade}", width)
            window.run("document.querySelector('.as-table').open = true")
            rows = table_of(window, ".as-table")
            assert [row[head] for row in rows] == [first, second]
            assert not scrolls_sideways(window)
            window.run("document.querySelector('canvas').focus()")
            window.press("Home")
            tip = window.run("document.querySelector('.tip').innerText")
            assert f"{head}: {first}" in tip
            assert "25 % of cores, 10,000 MiB free" in tip
            check(window, url)
        row, other = csv_of(window)
        amounts = {
            "promised_milli": "750",
            "free_milli": "250",
            "stranded_milli": "125",
            "free_mib": "10000",
            "idle_mib": "5000",
            "lent_mib": "2000",
            "used_mib": "30000",
            "used_percent": "61",
            "celsius": "57",
            "pod_count": "1",
            "pods": "ml/train",
        }
        assert {name: row[name] for name in amounts} == amounts
        assert (other["used_mib"], other["stranded_milli"]) == ("", "0")


def facts(window: Window) -> dict[str, str]:
    found: dict[str, str] = eventually(
        window,
        "(all => all.length && Object.fromEntries(all.map(each =>"
        " [...each.children].map(child => child.textContent))))"
        "([...document.querySelectorAll('#view dl > div')])",
    )
    return found


def test_pages_of_nodes_and_gpus_have_what_is_free_stranded_idle_and_lent(window: Window) -> None:
    with served(FixedSource(two_gpus())) as url:
        opened(window, f"{url}/node/n1")
        shown = facts(window)
        assert shown["GPUs free"] == "0.25 of 2.00, 48.8 GiB"
        assert shown["Stranded"] == "0.13 of 0.25 free GPUs"
        assert (shown["Promised and idle"], shown["Lent"]) == ("5,000 MiB", "2,000 MiB")
        assert [row["promised_mib"] for row in csv_of(window)] == ["42000", "0"]
        check(window, url)
        opened(window, f"{url}/gpu/n1/0")
        shown = facts(window)
        assert shown["Free"] == "25 % of cores, 10,000 MiB"
        assert shown["Stranded"] == "12.5 %, in proportion to its node's"
        assert (shown["Promised and idle"], shown["Lent"]) == ("5,000 MiB", "2,000 MiB")
        check(window, url)
        for page in ("gpu/n1/0", "pod/ml/train"):
            opened(window, f"{url}/{page}")
            (row,) = csv_of(window)
            assert (row["pod"], row["milli"], row["mib"], row["held_s"]) == (
                "train",
                "750",
                "42000",
                "40",
            )
            assert (row["idle_mib"], row["borrowed_mib"]) == ("5000", "2000")


def test_a_waiting_pods_and_a_clusters_health_are_taken_as_csv(window: Window, live: str) -> None:
    opened(window, f"{live}/pod/ml/large")
    eventually(window, "document.querySelector('weft-pod pre')?.innerText")
    (row,) = csv_of(window)
    assert row["pod"] == "large"
    assert row["reason"]
    opened(window, f"{live}/health")
    eventually(window, "document.querySelector('weft-health tbody')?.innerText")
    rows = csv_of(window)
    levels = window.run("[...document.querySelectorAll('.kind')].map(each => each.textContent)")
    assert [row["level"] for row in rows] == levels
    check(window, live)


def first_gpu_held(window: Window, record: str) -> str:
    opened(window, f"{record}/map?at=60")
    window.run("document.querySelector('.as-table').open = true")
    address: str = eventually(
        window, "document.querySelector('.as-table a[href^=\"/pod/\"]')?.closest('tr').dataset.key"
    )
    return address


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_of_cores_and_memory_have_their_points_in_a_table(
    window: Window, record: str, width: int
) -> None:
    gpu = first_gpu_held(window, record)
    opened(window, f"{record}/gpu/{gpu}?at=60", width)
    eventually(window, "document.querySelectorAll('svg.chart').length === 2")
    labels = window.run("[...document.querySelectorAll('figcaption')].map(e => e.textContent)")
    assert labels == ["Memory over time— promised", "Cores over time— promised"]
    window.run("document.querySelectorAll('figure summary')[1].focus()")
    window.press("Enter")
    rows = table_of(window, "figure:nth-of-type(2)")
    points = window.run(f"fetch('/api/history?gpu={quote(gpu, safe='')}').then(a => a.json())")
    assert len(points) > 1
    assert [row["promised"] for row in rows[: len(points)]] == [
        f"{point[1] / 10:.0f} %" for point in points
    ]
    check(window, record)
    assert violations(window) == []
    window.browser.complaints.clear()
    name, *size = png_of(window)
    assert name == f"weft-gpu-{gpu.replace('/', '-')}.png"
    assert min(size) > 200, "two charts below each other"


SORTS = """(() => {
  const sort = Array.prototype.sort;
  let count = 0;
  Array.prototype.sort = function (...by) { count += 1; return sort.apply(this, by); };
  %s;
  Array.prototype.sort = sort;
  return count;
})()"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_maps_that_are_compared_have_a_table_and_are_taken_as_one_picture(
    window: Window, record: str, width: int
) -> None:
    opened(window, f"{record}/compare?policy=fgd&at=60", width)
    eventually(window, "document.querySelector('weft-compare').dataset.shown === 'fgd 60'")
    window.run("document.querySelector('weft-compare > .as-table summary').focus()")
    window.press("Enter")
    rows = table_of(window, "weft-compare > .as-table")
    both = window.run("fetch('/api/compare?policy=fgd&number=60').then(answer => answer.json())")
    assert len(rows) == 40
    for row in rows:
        left, right = (both[day]["gpus"][row["GPU"]].get("promised_milli", 0) for day in both)
        assert row["Cores, recorded"] == f"{left / 10:g} %"
        assert row["Cores, fgd"] == f"{right / 10:g} %"
    assert any(row["Cores, difference"] != "0" for row in rows)
    assert window.run(SORTS % "document.querySelector('weft-compare').cells.content()") == 0
    assert not scrolls_sideways(window)
    check(window, record)
    name, wide, high = png_of(window)
    assert name == "weft-compare.png"
    maps = window.run("[...document.querySelectorAll('canvas')].map(e => e.offsetHeight)")
    assert len(maps) == 2
    assert high > sum(maps) + 2 * 120
    assert wide > 300
    check(window, record)


def gang_waiting() -> Picture:
    """A gang of 64 workers and a launcher that fits nowhere, another pod, and a gang that fits one
    by one."""
    alone = ShownWaiting("a", "ml", "alone", "no room", "alone", "1 whole GPU")
    launcher = ShownWaiting(
        "l", "ml", "launcher", "no room", "too large", "2 whole GPUs", "ask less", gang="ml/train"
    )
    workers = [
        ShownWaiting(
            f"w{at}",
            "ml",
            f"worker-{at:02}",
            WAITS_FOR_GROUP,
            "group train needs 65",
            "1 whole GPU",
            gang="ml/train",
            since_s=40.0,
        )
        for at in range(64)
    ]
    pair = [
        ShownWaiting(f"p{at}", "ml", f"pair-{at}", WAITS_FOR_GROUP, "needs 3", gang="ml/pair")
        for at in range(2)
    ]
    rows = [*workers, launcher, alone, *pair]
    return Picture(100.0, waiting={row.uid: row for row in rows})


@pytest.mark.parametrize("width", WIDTHS)
def test_a_gang_waits_in_one_row_that_unfolds_to_its_pods(window: Window, width: int) -> None:
    with served(FixedSource(gang_waiting())) as url:
        opened(window, f"{url}/waiting", width, dark=width == 390)
        sections = (
            "[...document.querySelectorAll('main section')].map(section =>"
            " [section.dataset.key, section.querySelector('h2 b').innerText,"
            " section.querySelectorAll('tbody tr').length])"
        )
        assert window.run(sections) == [["no room", "66", 2], [WAITS_FOR_GROUP, "2", 1]]
        assert "reasons: 2" in window.run("document.querySelector('#sums').innerText")
        gang = (
            "[...document.querySelectorAll('tr')].find(row => /group ml.train/.test(row.innerText))"
        )
        cells = window.run(f"[...{gang}.cells].map(cell => cell.textContent)")
        assert cells[0] == "group ml/train65 pods"
        assert cells[1] == "1 × 2 whole GPUs; 64 × 1 whole GPU"
        assert cells[2:5] == ["1 min 0 s", "too large", "ask less"]
        check(window, url)
        assert violations(window) == []
        window.browser.complaints.clear()

        window.run("document.activeElement.blur()")
        for _ in range(40):
            window.press("Tab")
            if window.run("document.activeElement.closest('.waiting') !== null"):
                break
        assert window.run("document.activeElement.getAttribute('aria-expanded')") == "false"
        window.press("Enter")
        assert window.run(sections) == [["no room", "66", 67], [WAITS_FOR_GROUP, "2", 1]]
        assert window.run("document.activeElement.getAttribute('aria-expanded')") == "true"
        members = window.run("[...document.querySelectorAll('.member')].map(e => e.innerText)")
        assert sum("needs 65" in text for text in members) == 64
        check(window, url)
        assert violations(window) == []
        window.browser.complaints.clear()
        window.press("Enter")
        assert window.run(sections) == [["no room", "66", 2], [WAITS_FOR_GROUP, "2", 1]]
        taken = csv_of(window)
        assert len(taken) == 68
        assert {(row["pod"], row["gang"], row["reason_group"]) for row in taken} >= {
            ("alone", "", "no room"),
            ("launcher", "ml/train", "no room"),
            ("worker-00", "ml/train", WAITS_FOR_GROUP),
        }
