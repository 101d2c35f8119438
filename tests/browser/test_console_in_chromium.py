"""The console in a real Chromium: every view, from a snapshot and from the demo."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from chromium import Window
from msgspec.structs import replace
from shown import PATIENCE_S, check, console, eventually, opened, served
from test_console_record import RecordedStory
from test_snapshot import random_story

from fakes.api_faults import Fault
from fakes.api_server import FakeApiServer
from weft.cluster.http.viewers import AUDIENCE
from weft.cluster.snapshot.file import write
from weft.console.deltas import between
from weft.console.picture import Picture, PictureMaker, PodFacts, ShownWaiting
from weft.console.recorded import RecordedSource
from weft.console.sources import Kind
from weft.core.engine import Engine, PodSeenBound, SignalsChanged
from weft.core.engine.records import Candidate
from weft.core.explain.explanation import Explanation, ObservedProgress, ResidentSlowdown
from weft.core.framework import Profile
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.framework.signals import SignalsSnapshot
from weft.core.ledger import RequestLimits
from weft.core.policies.catalog import built_in
from weft.core.record.passing import RecordedRun
from weft.kube.client import Endpoint, FixedCredentials
from weft.model import Placement, Share
from weft.testing import AGENT_BY_NAME, node

WIDTHS = (390, 1280)
MARKUP = "<img src=x onerror=alert(1)>"
TRY_INLINE = """
document.violated = [];
document.addEventListener('securitypolicyviolation', event => {
  document.violated.push(event.effectiveDirective);
});
for (const insert of [
  () => {
    const script = document.createElement('script');
    script.append(document.createTextNode('window.ran = 1'));
    document.body.append(script);
  },
  () => {
    document.body.setAttribute('onclick', 'window.ran = 1');
    document.body.click();
  },
  () => document.body.setAttribute('style', 'color: red'),
]) try { insert(); } catch (refusal) { document.violated.push(refusal.name); }
0
"""


@pytest.fixture(scope="module")
def demo(command: str) -> Iterator[str]:
    with console("--demo") as url:
        yield url


@pytest.fixture(scope="module")
def snapshot(command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("console") / "state.json"
    write(random_story(2).snapshot, file)
    with console("--snapshot", str(file)) as url:
        yield url


class PlayedApiServer:
    """A fake API server on a thread of its own."""

    def __init__(self) -> None:
        self.api, self._loop = FakeApiServer(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.api.start(), self._loop).result(PATIENCE_S)

    def tell(self, change: Callable[[], object]) -> None:
        """Change the world, on its thread."""

        async def now() -> None:
            change()

        asyncio.run_coroutine_threadsafe(now(), self._loop).result(PATIENCE_S)

    def silence(self) -> None:
        """Answer nobody any more."""
        self.api.faults.plan(Fault("lose-request", times=1_000_000))
        self.api.cut_watches()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.api.stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def played_api_server() -> Iterator[PlayedApiServer]:
    server = PlayedApiServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def fake_node(name: str) -> dict[str, Any]:
    cards = [{"index": index, "memory_mib": 16_000} for index in range(2)]
    notes = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "annotations": notes},
        "spec": {},
        "status": {"allocatable": has, "conditions": [ready]},
    }


def too_large(name: str) -> dict[str, Any]:
    asks = {"limits": {"weft.dev/gpu-memory": "99000"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    return {"metadata": {"name": name}, "spec": spec}


def kubeconfig_of(url: str) -> str:
    cluster = {"name": "c", "cluster": {"server": url}}
    context = {"name": "c", "context": {"cluster": "c"}}
    text = {"clusters": [cluster], "contexts": [context], "current-context": "c"}
    return json.dumps({"apiVersion": "v1", "kind": "Config", **text})


class StillSource:
    """An engine's state that stays as it is."""

    kind: Kind = "snapshot"
    about = MARKUP
    lives = False

    def __init__(self, engine: Engine, waiting: tuple[ShownWaiting, ...] = ()) -> None:
        self._engine, self._waiting = engine, waiting

    def picture(self) -> Picture:
        return PictureMaker(self._engine).picture(
            1.0, lambda uid: PodFacts(MARKUP, uid), self._waiting
        )

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        text = f"is bound on {MARKUP}"
        return Explanation(namespace, name, "u", "bound", text, "weft", leader=True)


def scrolls_sideways(window: Window) -> bool:
    """True if a table is wider than its card."""
    wider = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)"
    return bool(window.run(wider))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("source", ["demo", "snapshot"])
def test_each_view_shows_what_there_is(
    window: Window, request: pytest.FixtureRequest, source: str, width: int
) -> None:
    url = request.getfixturevalue(source)
    opened(window, f"{url}/", width, dark=width == 390)
    drawn = int(eventually(window, "document.querySelector('weft-map').dataset.drawn"))
    assert drawn == (200 if source == "demo" else drawn) > 0
    check(window, url)
    window.run("document.querySelector('.as-table').open = true")
    pod = eventually(window, "document.querySelector('.as-table a[href^=\"/pod/\"]')?.pathname")
    place = window.run("document.querySelector('.as-table a[href^=\"/gpu/\"]').pathname")
    assert not scrolls_sideways(window)

    opened(window, f"{url}/waiting", width)
    eventually(window, "document.querySelector('weft-waiting tbody tr td:nth-child(4)')?.innerText")
    check(window, url)

    opened(window, f"{url}/namespaces", width)
    eventually(window, "document.querySelector('weft-namespaces tbody td')?.innerText")
    check(window, url)
    assert not scrolls_sideways(window)

    opened(window, f"{url}/queues", width)
    queue = eventually(window, "document.querySelector('a[href^=\"/queue/\"]')?.pathname")
    check(window, url)
    assert not scrolls_sideways(window)
    opened(window, url + queue, width)
    eventually(window, "document.querySelector('weft-queue h2')?.innerText")
    check(window, url)

    opened(window, url + pod, width)
    eventually(window, "document.querySelector('weft-pod pre, weft-pod .empty')?.innerText")
    check(window, url)

    for address in (place, "/node/" + place.split("/")[2]):
        opened(window, url + address, width)
        eventually(window, "document.querySelector('#view .card .bar') !== null")
        check(window, url)


def test_the_demo_moves_by_itself_and_says_when_the_connection_is_lost(window: Window) -> None:
    with console("--demo") as url:
        opened(window, f"{url}/events")
        first = window.run("document.querySelector('tbody tr').dataset.key")
        newer = "Number(document.querySelector('tbody tr').dataset.key)"
        eventually(window, f"{newer} > {first}")
        assert window.run("document.querySelector('#freshness').className") == "live"
    eventually(window, "document.querySelector('#freshness').className === 'lost'")
    assert "Connection lost" in window.run("document.querySelector('#freshness').innerText")


def test_a_cluster_is_followed_and_a_silent_api_server_is_said(
    window: Window, tmp_path: Path
) -> None:
    with played_api_server() as server:
        server.tell(lambda: server.api.add("nodes", fake_node("n1")))
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(kubeconfig_of(server.api.url))
        with console("--kubeconfig", str(kubeconfig)) as url:
            opened(window, f"{url}/events")
            assert "Cluster: http://127.0.0.1" in window.run("document.body.innerText")
            server.tell(lambda: server.api.add("nodes", fake_node("later")))
            eventually(window, "document.querySelector('tbody tr')?.innerText.includes('later')")
            check(window, url)
            for view in ("map", "node/later", "gpu/later/0", "waiting"):
                opened(window, f"{url}/{view}", 390)
                eventually(window, "document.querySelector('#view h1, #view canvas') !== null")
                check(window, url)
            opened(window, f"{url}/health", 390)
            found = eventually(window, "document.querySelector('weft-health tbody')?.innerText")
            assert "scheduler" in found
            check(window, url)
            server.tell(server.silence)
            eventually(window, "document.querySelector('#freshness').className === 'silent'")
            assert "is silent: as of" in window.run(
                "document.querySelector('#freshness').innerText"
            )


def test_a_viewer_signs_in_and_sees_the_names_of_their_own_namespace(
    window: Window, tmp_path: Path
) -> None:
    with played_api_server() as server:
        server.tell(lambda: server.api.add("nodes", fake_node("n1")))
        for namespace in ("team", "secret"):
            server.tell(lambda to=namespace: server.api.add("pods", too_large("large"), to))
        server.api.access.listers.add(("viewer", "team"))
        token = server.api.access.token("viewer", AUDIENCE)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(kubeconfig_of(server.api.url))
        with console("--sign-in", "--kubeconfig", str(kubeconfig)) as url:
            window.open(f"{url}/waiting", 1280)
            eventually(window, "document.activeElement?.name === 'token'")
            window.browser.complaints.clear()  # Chromium tells of each 401
            window.type("not a token")
            window.press("Enter")
            said = "document.querySelector('#sign-in [role=alert]').innerText"
            eventually(window, f"{said}.startsWith('the token is not for')")
            assert f"--audience {AUDIENCE}" in window.run(said)
            window.browser.complaints.clear()
            window.run("document.querySelector('[name=token]').focus()")
            window.type(token)
            window.press("Enter")
            rows = "[...document.querySelectorAll('tbody tr')].map(row => row.innerText)"
            shown = eventually(window, f"{rows}.length === 2 ? {rows} : null")
            assert sum("team/large" in row for row in shown) == 1
            assert "secret" not in window.run("document.body.innerText")
            check(window, url)
            opened(window, f"{url}/map")
            check(window, url)
    window.run("sessionStorage.clear()")


class MovingSource(StillSource):
    """A state whose clock goes on."""

    kind: Kind = "demo"
    lives = True

    def picture(self) -> Picture:
        return replace(super().picture(), at_s=time.time())


def one_gpu() -> Engine:
    return Engine([Profile("weft", [built_in().create("fgd")])], [node("n1", gpus=1)])


def test_a_token_that_expires_asks_the_viewer_to_sign_in_again(window: Window) -> None:
    waiting = ShownWaiting("w", "team", "large", "group", "no room")
    with played_api_server() as server:
        access = server.api.access
        access.listers.add(("viewer", "team"))
        token, later = (access.token("viewer", AUDIENCE) for _ in range(2))
        here = Endpoint(server.api.url, FixedCredentials())
        with served(MovingSource(one_gpu(), (waiting,)), tokens_of=here) as url:
            window.open(f"{url}/waiting", 1280)
            for given in (token, later):
                eventually(window, "document.activeElement?.name === 'token'")
                window.browser.complaints.clear()
                window.type(given)
                window.press("Enter")
                eventually(
                    window, "document.querySelector('main tbody')?.innerText.includes('large')"
                )
                if given == token:
                    server.tell(lambda: access.ended.add(token))
                    said = "document.querySelector('#sign-in [role=alert]')?.innerText"
                    assert "may have expired" in eventually(window, said)
                    assert "large" not in window.run("document.body.innerText")
    window.run("sessionStorage.clear()")


def test_a_gpus_page_says_who_lends_and_who_borrows(window: Window) -> None:
    """The lender needs 2,856 of its 9,000 MiB; of 10,000, the other's 5,000 are 4,000 too many."""
    lends = RequestLimits.declared(harvest_permille=1500)
    engine = Engine(
        [Profile("weft", [built_in().create("auto")])],
        [node("n1", gpus=1, memory_mib=10_000)],
        limits=lends._replace(known_only=False),
    )
    for bound_ns, (uid, mib) in enumerate((("lender", 9_000), ("borrower", 5_000))):
        placement = Placement(uid, "n1", (Share(0, 0, mib, 100),))
        engine.handle(PodSeenBound(placement, bound_ns=bound_ns), 0)
    measured = SignalsSnapshot(1, 0, idle_mib={"lender": (6_144,)})
    engine.handle(SignalsChanged(measured), 0)
    with served(MovingSource(engine)) as url:
        opened(window, f"{url}/gpu/n1/0")
        rows = "[...document.querySelectorAll('.card tr')].map((row) => row.innerText.split('\\t'))"
        said = eventually(window, f"{rows}.length === 3 ? {rows} : null")
        assert said[0][:5] == ["Pod", "Cores", "Memory", "Idle", "Borrows"]
        assert {tuple(row[2:5]) for row in said[1:]} == {
            ("9,000 MiB", "6,144 MiB", "–"),
            ("5,000 MiB", "–", "4,000 MiB"),
        }
        check(window, url)
        opened(window, f"{url}/gpu/n1/0", 390)
        check(window, url)


HOUR_OFF = """{
  const real = Date.now.bind(Date);
  Date.now = () => real() + %d * 3600 * 1000;
}"""


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_browser_whose_clock_differs_by_an_hour_shows_what_is_live(
    window: Window, hours: int
) -> None:
    script = {"source": HOUR_OFF % hours}
    note = window.ask("Page.addScriptToEvaluateOnNewDocument", **script)["identifier"]
    try:
        with served(MovingSource(one_gpu())) as url:
            opened(window, f"{url}/map")
            assert window.run("document.querySelector('#freshness').className") == "live"
            assert "ago" not in window.run("document.querySelector('#freshness').innerText")
            check(window, url)
        eventually(window, "document.querySelector('#freshness').className === 'lost'")
        said = "/, (\\d+) s ago/.exec(document.querySelector('#freshness').innerText)?.[1]"
        assert int(eventually(window, said)) < 60, "the age is by the browser's clock alone"
    finally:
        window.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=note)


def test_a_pod_that_began_in_an_hour_says_that_clocks_differ(window: Window) -> None:
    """By the API server's clock it waits since later than the console has now."""
    later = time.time() + 3_600 + 30
    waiting = ShownWaiting("w", "team", "large", "group", "no room", since_s=later)
    soon = ShownWaiting("s", "team", "soon", "group", "no room", since_s=time.time() + 2)
    with served(MovingSource(one_gpu(), (waiting, soon))) as url:
        opened(window, f"{url}/waiting")
        text = "document.querySelector('main tbody').innerText"
        shown = eventually(window, f"{text}.includes('large') ? {text} : null")
        assert "from now (clocks differ)" in shown
        assert shown.count("clocks differ") == 1
        check(window, url)


TAKE = """
window.taken = {};
const make = URL.createObjectURL;
URL.createObjectURL = blob => { window.taken.blob = blob; return make.call(URL, blob); };
HTMLAnchorElement.prototype.click = function () { window.taken.name = this.download; };
0
"""


def test_tables_are_taken_as_csv_pictures_as_png_and_addresses_as_links(window: Window) -> None:
    engine = Engine([Profile("weft", [built_in().create("fgd")])], [node("n1", gpus=2)])
    share = Share(0, 1, 8_192, 250)  # half a GPU by memory
    engine.handle(PodSeenBound(Placement("=1+1", "n1", (share,))), 1)
    waiting = ShownWaiting("w", "ml", 'a "b", c', "group", "reason")
    with served(StillSource(engine, (waiting,))) as url:
        texts = {}
        for view in ("map", "waiting", "namespaces", "namespace/ml"):
            opened(window, f"{url}/{view}")
            window.run(TAKE)
            buttons = "[...document.querySelectorAll('#take button')]"
            window.run(f"{buttons}.find(one => one.innerText === 'CSV').focus()")
            window.press("Enter")
            texts[view] = window.run("window.taken.blob.text()").splitlines()
            assert window.run("window.taken.name") == f"weft-{view.replace('/', '-')}.csv"
            check(window, url)
        assert texts["map"][2].startswith("n1,1,")
        assert ",250," in texts["map"][2]
        assert texts["map"][2].endswith(f"{MARKUP}/=1+1"), "no formula: its namespace is before it"
        assert texts["waiting"][1] == 'ml,"a ""b"", c",,group,,,reason,,'
        assert texts["namespaces"][1:] == [f"{MARKUP},1,500,8192,0", "ml,0,0,0,1"]
        opened(window, f"{url}/map")
        window.run(TAKE)
        window.run(f"{buttons}.find(one => one.innerText === 'PNG').click()")
        eventually(window, "window.taken.name === 'weft-map.png'")
        assert window.run("window.taken.blob.type") == "image/png"
        assert window.run("window.taken.blob.size") > 500
        window.run(f"{buttons}.find(one => one.innerText === 'Copy link').click()")
        first = f"{buttons}[0].innerText"
        said = eventually(window, f"{first} === 'Copy link' ? null : {first}")
        assert said in ("Copied", f"{url}/map")


def test_a_page_is_brought_up_to_date_in_place(window: Window, demo: str) -> None:
    opened(window, f"{demo}/node/h100-01")
    window.run("document.before = document.querySelector('.card'); document.seen = 0; 0")
    window.run(
        "new MutationObserver(all => { document.seen += all.length; })"
        ".observe(document.querySelector('weft-node'),"
        " {subtree: true, childList: true, attributes: true, characterData: true}); 0"
    )
    eventually(window, "document.seen > 20")
    assert window.run("document.before === document.querySelector('.card')")
    widths = "[...document.querySelectorAll('.bar i')].map(part => part.style.width)"
    assert all(window.run(widths))
    check(window, demo)


def test_the_map_can_be_read_by_keyboard_and_filtered_by_its_address(
    window: Window, demo: str
) -> None:
    opened(window, f"{demo}/map?group=zone&namespace=research")
    window.run("document.querySelector('canvas').focus()")
    window.press("ArrowRight")
    window.press("ArrowDown")
    assert "GPU" in window.run("document.querySelector('.tip').innerText")
    assert window.run("document.querySelector('[name=namespace]').value") == "research"
    window.run("document.querySelector('.as-table').open = true")
    rows = "[...document.querySelectorAll('.as-table tbody tr')].map(row => row.innerText)"
    shown = eventually(window, f"{rows}.length ? {rows} : null")
    assert all("research/" in row for row in shown)


def test_each_colour_and_group_of_the_map_is_drawn(window: Window, demo: str) -> None:
    opened(window, f"{demo}/map")
    form = "[...document.querySelector('[name=%s]').options].map(one => one.value)"
    shades, groups = window.run(form % "shade"), window.run(form % "group")
    assert {"free", "stranded", "lent", "used", "busy", "temperature", "namespace"} <= {*shades}
    assert "label:topology.kubernetes.io/zone" in groups
    for address in (*(f"shade={one}" for one in shades), *(f"group={one}" for one in groups)):
        opened(window, f"{demo}/map?{address}")
        name, _, value = address.partition("=")
        eventually(window, f"document.querySelector('[name={name}]').value === '{value}'")
        eventually(window, "document.querySelector('weft-map').dataset.drawn === '200'")
        check(window, demo)


def candidates_of_a_pod(window: Window, demo: str) -> int:
    """Open a placed pod's page and count its best nodes; another pod's if that one has ended."""
    gone = "document.querySelector('weft-pod').textContent.includes('There is no such pod now')"
    bars = "document.querySelectorAll('[data-key=candidates] .bar').length"
    for _ in range(5):
        opened(window, f"{demo}/map")
        window.run("document.querySelector('.as-table').open = true")
        pod = eventually(window, "document.querySelector('.as-table a[href^=\"/pod/\"]')?.pathname")
        opened(window, demo + pod)
        if (found := int(eventually(window, f"{bars} || ({gone} ? -1 : 0)"))) > 0:
            return found
    raise AssertionError("five pods ended before their page was shown")


def test_a_pods_page_has_its_scores_and_its_cards_over_time(window: Window, demo: str) -> None:
    candidates = candidates_of_a_pod(window, demo)
    assert window.run("document.querySelectorAll('[data-key=candidates] h3').length") == candidates
    eventually(window, "document.querySelector('weft-pod svg path')?.getAttribute('d')")
    check(window, demo)


class ExplainedSource(StillSource):
    """A pod of which the scheduler said all that it knows."""

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        best = tuple(Candidate(node, 90 - at, {"fgd": 90 - at}) for at, node in enumerate("ab"))
        return Explanation(
            namespace,
            name,
            "u1",
            "bound",
            "is bound on a",
            "weft",
            leader=True,
            node="a",
            candidates=best,
            rescored=True,
            score_parts=("+60.0: completes GPU 0 exactly", "-2.5: 2.0 GPUs are left free"),
            predicted=(
                ExpectedSlowdown("train", 1.25, 1.5, "pair"),
                ExpectedSlowdown("serve", 1.1, 1.2, "pair"),
                ExpectedSlowdown("other", 1.3, 1.4, "pair"),
            ),
            progress=ObservedProgress("progress", 1.33),
            residents=(ResidentSlowdown(MARKUP, "u2", 1.07, "progress"),),
        )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_pods_page_has_scores_and_slowdowns_predicted_and_observed(
    window: Window, width: int
) -> None:
    nodes = [node(name, gpus=1) for name in "ab"]
    engine = Engine([Profile("weft", [built_in().create("fgd")])], nodes)
    for uid, application in (("u1", "train"), ("u2", "serve")):
        place = Placement(uid, "a", (Share(0, 0, 1_000, 100),), application=application)
        engine.handle(PodSeenBound(place), 1)
    with served(ExplainedSource(engine)) as url:
        opened(window, f"{url}/pod/{quote(MARKUP, safe='')}/u1", width)
        rows = (
            "[...document.querySelectorAll('[data-key=slowdown] tbody tr')].map(r => r.innerText)"
        )
        shown = eventually(window, f"{rows}.length ? {rows} : null")
        assert [row.split("\t")[1:] for row in shown] == [
            ["1.25 ×", "1.50 ×", "1.33 ×"],
            ["1.10 ×", "1.20 ×", "1.07 ×"],
            ["1.30 ×", "1.40 ×", "–"],
        ]
        assert "serve" in shown[1]
        heads = "document.querySelector('[data-key=candidates] h2').innerText"
        assert "as of now" in window.run(heads)
        assert window.run("document.querySelectorAll('[data-key=candidates] .bar').length") == 2
        assert window.run("document.querySelectorAll('[data-key=parts] .bar').length") == 2
        check(window, url)


def test_names_with_markup_are_text_and_inline_script_is_blocked(window: Window) -> None:
    engine = Engine([Profile("weft", [built_in().create("fgd")])], [node(MARKUP, gpus=2)])
    share = Share(0, 0, 100, 100)
    engine.handle(PodSeenBound(Placement(MARKUP, MARKUP, (share,), application=MARKUP)), 1)
    waiting = ShownWaiting("w", MARKUP, MARKUP, MARKUP, MARKUP, MARKUP, MARKUP)
    with served(StillSource(engine, (waiting,))) as url:
        name = quote(MARKUP, safe="")
        views = ("map", "waiting", f"node/{name}", f"gpu/{name}/0", f"pod/{name}/{name}")
        for view in views:
            opened(window, f"{url}/{view}")
            text = "document.body.innerText.includes('onerror') || document.querySelector('canvas')"
            eventually(window, f"!!({text})")
            assert window.run("document.querySelectorAll('img:not(.brand img)').length") == 0
            check(window, url)
        window.run(TRY_INLINE)
        eventually(window, "document.violated.includes('style-src-attr')")
        assert "require-trusted-types-for" in window.run("document.violated")
        assert window.run("window.ran ?? 'never'") == "never"
        page = "document.body.innerHTML = '<b>x</b>'"
        assert window.run(f"try {{ {page}; 'set' }} catch {{ 'refused' }}") == "refused"
        window.browser.complaints.clear()
        frame = window.ask("Page.getFrameTree")["frameTree"]["frame"]["id"]
        html = "<script>window.ran = 1</script><p id=there>there</p>"
        window.ask("Page.setDocumentContent", frameId=frame, html=html)  # as if it had been served
        eventually(window, "document.getElementById('there') !== null")
        assert window.run("window.ran ?? 'never'") == "never"
        assert any("inline script" in told for told in window.browser.complaints)


BY_DELTAS = (Path(__file__).parent / "by_deltas.js").read_text()


def test_ten_pages_of_one_browser_all_show_the_cluster(window: Window, demo: str) -> None:
    """A browser opens six connections to a server: with a stream for each page, the seventh waited
    for ever."""
    opened(window, f"{demo}/map")
    for _ in range(9):
        window.tab(f"{demo}/map")
        eventually(window, "document.querySelector('#sums .tile') !== null")
    window.back()
    age = "document.querySelector('#freshness .age').innerText"
    then = window.run(age)
    eventually(window, f"{age} !== {json.dumps(then)}")
    check(window, demo)


@pytest.mark.parametrize("seed", range(6))
def test_a_page_that_followed_deltas_has_what_one_opened_afresh_has(
    window: Window, demo: str, tmp_path: Path, seed: int
) -> None:
    RecordedStory(seed, path := tmp_path / "day.jsonl", events=120)
    run = RecordedRun(path, built_in().create)
    source = RecordedSource(run, "", pytest.fail)
    pictures = [source.at(number) for number in range(len(source.record.at_s))]
    deltas = [between(old, new) for old, new in itertools.pairwise(pictures)]
    assert any(delta.pods.gone for delta in deltas)
    told = {"first": pictures[0], "deltas": deltas, "last": pictures[-1]}
    opened(window, f"{demo}/map")
    assert window.run(f"{BY_DELTAS}({msgspec.json.encode(told).decode()})") == []


def test_ten_thousand_waiting_pods_are_shown_by_reason_a_page_at_a_time(window: Window) -> None:
    engine = Engine([Profile("weft", [built_in().create("fgd")])], [node("n1", gpus=1)])
    waiting = tuple(
        ShownWaiting(f"u{at}", "team", f"pod-{at:05d}", f"reason {at % 4}", "no room", since_s=0.5)
        for at in range(10_000)
    )
    with served(StillSource(engine, waiting)) as url:
        opened(window, f"{url}/waiting")
        rows = "document.querySelectorAll('tbody tr').length"
        assert eventually(window, rows) == 4 * 50
        assert "10,000" in window.run("document.querySelector('nav [aria-current]').innerText")
        window.run("document.querySelector('main section button').click()")
        assert window.run(rows) == 2_500 + 3 * 50
        window.run(
            "window.took = performance.now(); document.querySelector('a[href=\"/map\"]').click();"
            "window.took = performance.now() - window.took"
        )
        assert window.run("window.took") < 5_000
        check(window, url)
