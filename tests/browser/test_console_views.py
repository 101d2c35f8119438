"""Every view of the console from each source, at three widths: nothing is cut off or comes from
elsewhere, axe-core finds no violation, and all can be reached without a mouse."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from chromium import Window
from shown import check, console, eventually, opened
from test_console_in_chromium import (
    PlayedApiServer,
    demo,
    fake_node,
    kubeconfig_of,
    played_api_server,
    snapshot,
    too_large,
)
from test_recorded_days import record

__all__ = ["demo", "record", "snapshot"]
WIDTHS = (390, 1280, 2560)
SOURCES = ("live", "snapshot", "record", "demo")
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = f"""
axe.run(document, {{resultTypes: ['violations'], runOnly: {json.dumps(RULES)}}}).then(found =>
  found.violations.map(one => [one.id, one.help, one.nodes.map(node => node.html.slice(0, 160))]))
"""


@pytest.fixture(scope="module")
def live(command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The console of an API server with a bound pod and one that fits nowhere."""
    with played_api_server() as server:
        fill(server)
        kubeconfig = tmp_path_factory.mktemp("live") / "kubeconfig"
        kubeconfig.write_text(kubeconfig_of(server.api.url))
        with console("--kubeconfig", str(kubeconfig)) as url:
            yield url


def fill(server: PlayedApiServer) -> None:
    def now() -> None:
        server.api.add("nodes", fake_node("n1"))
        server.api.add("pods", too_large("large"), "ml")
        server.api.add("pods", too_large("held"), "ml")
        uid = server.api.get("pods", "held", "ml")["metadata"]["uid"]
        value = json.dumps({"pod": uid, "node": "n1", "shares": [[0, 0, 8_000, 0, ""]]})
        marks = {"weft.dev/placement": value, "weft.dev/placement-copy": value}
        change = {"metadata": {"annotations": marks}, "spec": {"nodeName": "n1"}}
        server.api.update("pods", "held", change, "ml")

    server.tell(now)


def views(window: Window, url: str, at: str) -> list[str]:
    """The addresses of all views that this console has: those of the first of each thing too."""
    opened(window, f"{url}/map{at}")
    window.run("document.querySelector('.as-table').open = true")
    eventually(window, "document.querySelector('.as-table a[href^=\"/gpu/\"]') !== null")
    first = "document.querySelector('%s a[href^=\"/%s/\"]')?.pathname"
    found = ["/map", *window.run("[...document.querySelectorAll('nav a')].map(a => a.pathname)")]
    places = [window.run(first % (".as-table", kind)) for kind in ("gpu", "node", "pod")]
    for kind in ("namespace", "queue"):
        opened(window, f"{url}/{kind}s{at}")
        places.append(eventually(window, first % ("main", kind)))
    addresses = [address + at for address in dict.fromkeys([*found, *filter(None, places)])]
    if "/compare" in found:
        addresses.append(f"/compare?policy=fgd{at.replace('?', '&')}")
    return addresses


def newest_pod(window: Window, url: str) -> str:
    """The page of the pod that the demo placed last: those of others may end meanwhile."""
    opened(window, f"{url}/events")
    row = "document.querySelector('.kind.bound')?.closest('tr')"
    found: str = eventually(window, f"{row}?.querySelector('a[href^=\"/pod/\"]')?.pathname")
    return found


def violations(window: Window) -> list[Any]:
    if window.run("typeof axe") == "undefined":
        window.run(AXE + "\n0")
    found: list[Any] = window.run(RUN_AXE)
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_no_view_has_a_violation_at_any_width(
    window: Window, request: pytest.FixtureRequest, source: str
) -> None:
    url = request.getfixturevalue(source)
    wanted = {"/map", "/waiting", "/namespaces", "/queues"}
    wanted |= {"live": {"/health"}, "record": {"/compare"}, "demo": {"/events"}}.get(source, set())
    addresses = views(window, url, "?at=60" if source == "record" else "")
    assert wanted <= {address.partition("?")[0] for address in addresses}
    for given in addresses:
        for width in WIDTHS:
            fleeting = source == "demo" and given.startswith("/pod/")
            address = newest_pod(window, url) if fleeting else given
            opened(window, url + address, width, dark=width == 390)
            settled(window, address)
            check(window, url)
            assert violations(window) == [], (source, address, width)
            window.browser.complaints.clear()  # axe tries what the policy of the page forbids


def settled(window: Window, address: str) -> None:
    """The answers that the view asks for beside the picture have come."""
    eventually(window, "document.querySelector('#view h1, #view canvas') !== null")
    if address.startswith("/pod/"):
        eventually(window, "document.querySelector('weft-pod pre')?.innerText")
    elif address.startswith("/health"):
        eventually(window, "document.querySelector('weft-health tbody')?.innerText")
    elif "policy=" in address:
        eventually(
            window, "document.querySelectorAll('weft-compare canvas[aria-label]').length === 2"
        )


def focused(window: Window) -> str:
    text: str = window.run(
        "(at => at === document.body ? '' : at.pathname ?? at.name ?? at.localName)"
        "(document.activeElement)"
    )
    return text


def test_each_view_is_reached_by_the_keyboard_alone(window: Window, demo: str) -> None:
    opened(window, f"{demo}/map")
    names = window.run("[...document.querySelectorAll('nav a')].map(a => a.pathname)")
    assert len(names) >= 5
    for name in names:
        window.run("document.activeElement.blur(); scrollTo(0, 0)")
        for _ in range(30):
            window.press("Tab")
            if focused(window) == name:
                break
        assert focused(window) == name
        outline = window.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "what has the focus is seen"
        window.press("Enter")
        eventually(window, f"location.pathname === '{name}'")
        eventually(window, "document.querySelector('#view h1') !== null")
        assert focused(window) in ("main", "view", ""), "reading goes on with the view"
    window.press("Tab")
    assert window.run("document.querySelector('#view').contains(document.activeElement)")
    opened(window, f"{demo}/map")
    for _ in range(40):
        window.press("Tab")
        if focused(window) == "canvas":
            break
    window.press("ArrowRight")
    window.press("Enter")
    eventually(window, "location.pathname.startsWith('/gpu/')")
    node = eventually(window, "document.querySelector('main a[href^=\"/node/\"]')?.pathname")
    for _ in range(30):
        window.press("Tab")
        if focused(window) == node:
            break
    window.press("Enter")
    eventually(window, f"location.pathname === '{node}'")
