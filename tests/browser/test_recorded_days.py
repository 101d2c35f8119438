"""Recorded days in a real Chromium: the slider, files that are cut or edited, and comparisons."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Window
from shown import check, console, eventually, opened
from test_console_record import RecordedStory

WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def record(command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The console of a simulated day."""
    folder = tmp_path_factory.mktemp("day")
    for words in (
        "generate nodes nodes.csv --gpus 40",
        "generate pods pods.csv --gpus 40 --count 100 --load 3",
        "simulate --nodes nodes.csv --pods pods.csv --policy first-fit --timed"
        " --decisions day.jsonl --output csv",
    ):
        weft = [sys.executable, "-m", "weft", *words.split()]
        subprocess.run(weft, cwd=folder, check=True, capture_output=True)
    with console("--decisions", str(folder / "day.jsonl")) as url:
        yield url


DRAG = """{
    const real = window.fetch, slider = document.querySelector("#time input");
    let now = 0;
    window.mostAtOnce = 0;
    window.fetch = async (address, ...rest) => {
        if (!address.startsWith("/api/compare")) return real(address, ...rest);
        window.mostAtOnce = Math.max(window.mostAtOnce, ++now);
        try { return await real(address, ...rest); } finally { now -= 1; }
    };
    for (let moment = 1; moment <= 30; moment++) {
        slider.value = moment;
        slider.dispatchEvent(new Event("input"));
    }
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_a_day_is_beside_the_same_day_under_another_policy(
    window: Window, record: str, width: int
) -> None:
    opened(window, f"{record}/compare", width)
    window.run("document.querySelector('weft-compare select').focus()")
    window.run(
        "{ const choice = document.querySelector('weft-compare select');"
        " choice.value = 'fgd'; choice.dispatchEvent(new Event('change')); }"
    )
    assert window.run("location.search") == "?policy=fgd"
    drawn = "[...document.querySelectorAll('weft-compare weft-map')].map(map => map.dataset.drawn)"
    eventually(window, f"{drawn}.every(count => count === '40')")
    assert window.run("document.querySelector('weft-compare table').innerText").count("\t") > 10
    assert window.run("document.querySelectorAll('weft-compare svg path').length") == 4
    check(window, record)
    window.run("document.querySelector('#time input').focus()")
    window.press("Home")
    eventually(window, "document.querySelector('weft-compare').dataset.shown === 'fgd 0'")
    assert window.run("location.search") == "?policy=fgd&at=0"
    check(window, record)
    window.run(DRAG)
    eventually(window, "document.querySelector('weft-compare').dataset.shown === 'fgd 30'")
    assert window.run("window.mostAtOnce") == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_moments_have_numbers_where_nothing_takes_time(
    window: Window, tmp_path: Path, width: int
) -> None:
    """In a simulation in which pods only arrive, as in `make demo`."""
    for command in (
        "generate nodes nodes.csv --gpus 40",
        "generate pods pods.csv --gpus 40",
        "simulate --nodes nodes.csv --pods pods.csv --policy best-fit --decisions day.jsonl",
    ):
        subprocess.run([sys.executable, "-m", "weft", *command.split()], cwd=tmp_path, check=True)
    with console("--decisions", str(tmp_path / "day.jsonl")) as url:
        opened(window, f"{url}/compare?policy=random", width)
        scale = "document.querySelector('weft-compare .scale')?.innerText"
        moments = int(window.run("document.querySelector('#time input').max")) + 1
        assert eventually(window, scale).startswith(f"{moments} moments, up to ")
        assert f"moment {moments} of {moments}" in window.run("document.body.innerText")
        table = "document.querySelector('weft-compare table')"
        assert window.run(f"{table}.offsetWidth <= {table}.parentElement.clientWidth")
        check(window, url)


DROPPED = """{
    const real = window.fetch;
    window.fetch = (address, ...rest) => (/number=/.test(address) && !window.kept
        ? Promise.resolve(new Response('{"error": "it is not simulated yet"}', { status: 404 }))
        : real(address, ...rest));
}"""


def test_a_day_that_is_not_kept_any_more_is_not_shown_as_it_was(
    window: Window, record: str
) -> None:
    """Others were simulated since: the maps are of another moment than the slider's."""
    opened(window, f"{record}/compare?policy=fgd")
    eventually(window, "document.querySelector('weft-compare').dataset.shown")
    window.run(DROPPED)
    window.run("document.querySelector('#time input').focus()")
    window.press("Home")
    said = "document.querySelector('weft-compare [role=alert]')?.innerText"
    assert "no longer in memory: it is not simulated yet." in eventually(window, said)
    assert window.run("document.querySelector('weft-compare > .days').hidden")
    window.run("window.kept = true")
    window.run("document.querySelector('weft-compare button').click()")
    eventually(window, "document.querySelector('weft-compare').dataset.shown === 'fgd 0'")
    assert not window.run("document.querySelector('weft-compare > .days').hidden")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_record_that_was_edited_is_shown_up_to_there_and_says_so(
    window: Window, tmp_path: Path, width: int
) -> None:
    RecordedStory(5, path := tmp_path / "day.jsonl", events=60)
    lines = path.read_bytes().splitlines(keepends=True)
    edited = lines[30].replace(b'"at_ns":', b'"at_ns":1', 1)
    assert edited != lines[30]
    path.write_bytes(b"".join([*lines[:30], edited, *lines[31:]]))
    with console("--decisions", str(path)) as url:
        opened(window, f"{url}/map", width)
        said = window.run("document.querySelector('#time [role=alert]').innerText")
        assert "line 31" in said
        assert window.run("document.querySelector('#time input').max") == "28"
        check(window, url)


def test_a_record_has_a_slider_whose_moment_is_in_the_address(
    window: Window, tmp_path: Path
) -> None:
    RecordedStory(5, path := tmp_path / "day.jsonl", events=60)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50]))
    gpus = "document.querySelector('#sums').innerText"
    with console("--decisions", str(path)) as url:
        opened(window, f"{url}/map")
        assert "cut off" in window.run("document.querySelector('#time .trouble').innerText")
        at_the_end = window.run(gpus)
        window.run("document.querySelector('#time input').focus()")
        for _ in range(3):
            window.press("ArrowLeft")
        eventually(window, "location.search === '?at=45'")
        window.press("Home")
        eventually(window, "location.search === '?at=0'")
        eventually(window, "document.querySelector('#time').dataset.shown === '0'")
        first = window.run(gpus)
        assert first != at_the_end
        assert window.run("document.querySelector('#time input').getAttribute('aria-valuetext')")
        check(window, url)
        opened(window, f"{url}/waiting?at=0", 390)
        eventually(window, f"{gpus} === {json.dumps(first)}")
        window.run("document.querySelector('nav a[href=\"/map\"]').click()")
        assert window.run("location.pathname + location.search") == "/map?at=0"
        window.run("document.querySelector('#time button').click()")
        eventually(window, "Number(document.querySelector('#time input').value) >= 2")
        window.run("document.querySelector('#time button').click()")
        check(window, url)


LOOKED_AWAY = """{
    const at = () => performance.getEntriesByName("weft-data").at(-1).startTime;
    window.came = at();
    window.cameAgain = () => at() > window.came;
    for (const hidden of [true, false]) {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }
}"""
"""A tab is hidden and shown again: the page gives its stream away, and takes one again."""


def test_the_moment_that_was_chosen_stays_when_the_page_is_looked_at_again(
    window: Window, record: str
) -> None:
    shown = (
        "[...document.querySelectorAll('#time input, #time output')].map(each => each.value)"
        ".concat([...document.querySelectorAll('#sums, #view')].map(each => each.innerText))"
    )
    sums = "document.querySelector('#sums').innerText"
    for view in ("map", "waiting"):
        opened(window, f"{record}/{view}")
        at_the_end = window.run(sums)
        opened(window, f"{record}/{view}?at=60")
        eventually(window, "document.querySelector('#time').dataset.shown === '60'")
        first = window.run(shown)
        assert first[2] != at_the_end
        window.run(LOOKED_AWAY)
        eventually(window, "window.cameAgain()")
        assert window.run(shown) == first
        check(window, record)


UNANSWERED = """{
    const real = window.fetch;
    window.fetch = (address, ...rest) => (address.startsWith("/api/moment") && !window.answers
        ? Promise.reject(new TypeError("no answer")) : real(address, ...rest));
}"""


def test_a_moment_that_could_not_be_fetched_is_fetched_with_the_next_connection(
    window: Window, record: str
) -> None:
    opened(window, f"{record}/map")
    slider = "document.querySelector('#time input').value"
    last = window.run(slider)
    at_the_end = window.run("document.querySelector('#sums').innerText")
    window.run(UNANSWERED)
    window.run(
        "const time = document.querySelector('#time input'); time.value = 60;"
        " time.dispatchEvent(new Event('input'))"
    )
    eventually(window, f"{slider} === '{last}'")
    assert window.run("location.search") == "?at=60"
    window.run("window.answers = true")
    window.run(LOOKED_AWAY)
    eventually(window, "document.querySelector('#time').dataset.shown === '60'")
    assert window.run(slider) == "60"
    assert window.run("document.querySelector('#sums').innerText") != at_the_end
    check(window, record)
