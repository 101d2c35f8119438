"""Serves the console: its page, the picture with its deltas as they come, and explanations.

/                      the page; also at /map, /waiting, /namespaces, /queues, /events,
                       /compare, and those of one pod, GPU, node, namespace or queue
/static/NAME           the page's modules and styles
/api/about             what is shown, and of which version
/api/picture           server-sent events: one `picture`, then `delta`s
/api/moment            ?number=…: the picture of one of a record's moments
/api/compare           ?policy=…: the progress of the day's simulation under another policy, which
                       the first request starts; with &number=… both pictures at that moment
/api/explain           ?namespace=…&name=…: the lines of `weft explain pod`
/api/history           ?gpu=NODE/INDEX: the promised and used amounts of a GPU over time
/api/health            the findings of `weft status` and `weft doctor`, of a live cluster
/healthz               200 while the process runs

With `Viewers`, /api/ requires a bearer token that the API server accepts, and shows names only of
pods that the token's user may list (`hiding.py`); hidden objects are reported as not existing.

The console changes nothing. Its pages load nothing from other hosts and no inline script
(Content-Security-Policy). On a loopback address, requests for other host names are refused, so that
no other site's page can read the answers.
"""

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncGenerator
from functools import cache
from importlib.resources import files
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from msgspec import UNSET
from msgspec.structs import replace

import weft
from weft.cluster.http.access import is_loopback
from weft.cluster.http.server import (
    HttpAnswer,
    HttpServer,
    HttpStream,
    ProblemBody,
    ServerLimits,
)
from weft.cluster.http.token_turns import PermissionRefusal
from weft.cluster.http.viewers import ALL, ViewerRights, Viewers
from weft.console.comparison import Comparisons
from weft.console.deltas import between
from weft.console.hiding import Hiding, namespaces_of
from weft.console.history import GpuHistory, GpuPoint
from weft.console.picture import Picture
from weft.console.recorded import RecordedSource
from weft.console.sources import PictureSource
from weft.core.engine.records import Candidate
from weft.core.explain.explanation import Explanation, ObservedProgress, ResidentSlowdown
from weft.core.explain.renderer import lines_of
from weft.model import WeftError

if TYPE_CHECKING:
    from weft.console.health import Health  # which reads a cluster: the demo starts without

log = logging.getLogger("weft.console")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
VIEWS = frozenset(
    {
        "",
        "map",
        "waiting",
        "namespaces",
        "queues",
        "events",
        "pod",
        "gpu",
        "node",
        "namespace",
        "queue",
        "health",
        "compare",
    }
)
"""First parts of the views' addresses; the page's script reads the remaining parts."""
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNANSWERED = 503
_REST = 4
"""Pause after a picture, as a multiple of the time that it took: pictures of a large cluster take a
fifth of the time at most."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class ConsoleOptions(msgspec.Struct, frozen=True):
    """Settings of the console's server, with the reasons for their defaults.

    `every_s`: between two pictures of a changing cluster; people do not see faster changes.
    `unseen_every_s`: the same while no browser is connected, so that events and GPUs' histories
    continue. `keepalive_s`: longest silence of a stream, so that a lost connection is noticed.
    `limits`: 256 connections suffice for 200 browsers; a browser that reads nothing for 20 s is
    disconnected.
    """

    every_s: float = 0.5
    unseen_every_s: float = 30.0
    keepalive_s: float = 10.0
    limits: ServerLimits = ServerLimits(head_s=10, take_s=20, idle_s=75, most_connections=256)
    close_s: float = 1.0


class AboutConsole(msgspec.Struct, frozen=True):
    """The answer of /api/about. `moments` are a record's, seconds since 1970; `trouble` is the
    reason why the record has no more moments, or is doubtful. `health`: /api/health exists.
    `policies` are those with which the record can be compared."""

    version: str
    kind: str
    about: str
    lives: bool
    moments: tuple[float, ...] = ()
    trouble: str = ""
    health: bool = False
    policies: tuple[str, ...] = ()


class PodExplanation(msgspec.Struct, frozen=True):
    """The answer of /api/explain: `lines` as `weft explain pod` prints them, the best `candidates`,
    and the `parts` of the score of the pod's place; `rescored`: the score is computed as of now.
    Only viewers who may see all names get the slowdown `predicted` for the pod and its
    co-residents, the pod's `progress`, that of its co-residents (`residents`), and the whole
    `explanation`."""

    lines: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()
    parts: tuple[str, ...] = ()
    predicted: tuple[msgspec.Struct, ...] = ()
    progress: ObservedProgress | None = None
    residents: tuple[ResidentSlowdown, ...] = ()
    rescored: bool = False
    explanation: msgspec.Raw = msgspec.Raw(b"null")

    @classmethod
    def of(
        cls, explanation: Explanation, hiding: Hiding, picture: Picture, *, everything: bool
    ) -> "PodExplanation":
        """Return the part of the explanation that a viewer may see of this picture."""
        explanation = hiding.explanation(explanation, picture)
        record = None if explanation.decision is UNSET else explanation.decision.record
        candidates = explanation.candidates or (record.top if record else ())
        lines = tuple(map(hiding.text, lines_of(explanation)))
        parts = tuple(map(hiding.text, explanation.score_parts))
        rescored = explanation.rescored
        if not everything:
            return cls(lines, candidates, parts, rescored=rescored)
        predicted = explanation.predicted or (record.predicted if record else ())
        whole = msgspec.Raw(msgspec.json.encode(explanation.json_value()))
        progress, residents = explanation.progress, explanation.residents
        return cls(lines, candidates, parts, predicted, progress, residents, rescored, whole)


class ConsoleServer:
    """Serves one source's pictures to any number of browsers."""

    def __init__(
        self,
        source: PictureSource,
        options: ConsoleOptions | None = None,
        viewers: Viewers | None = None,
        health: "Health | None" = None,
        comparisons: Comparisons | None = None,
    ) -> None:
        self._source, self._options = source, options or ConsoleOptions()
        self._viewers, self._secret = viewers, secrets.token_bytes(32)
        self._health, self._comparisons = health, comparisons
        self._picture, self._took_s, self._looked_s = source.picture(), 0.0, perf_counter()
        self._history = GpuHistory()
        self._history.see(self._picture)
        self._moved, self._closing, self._on_loopback = asyncio.Event(), False, True
        self._viewing, self._looked_at = 0, asyncio.Event()
        self._views: dict[ViewerRights, Picture] = {}
        self._encoded: dict[tuple[int, int], tuple[Picture, bytes]] = {}
        self._server = HttpServer(
            self._answer,
            self._options.limits,
            problem=_problem,
            unreadable=_problem,
            turned_away=lambda reason: None,
            log=log,
        )

    async def listen(self, host: str, port: int) -> int:
        """Open a port (0: any free one), and return its number; `OSError` where it is taken."""
        self._on_loopback = is_loopback(host)
        return await self._server.listen(host, port)

    async def run(self) -> None:
        """Take new pictures of a changing cluster, until cancelled."""
        while True:
            await asyncio.sleep(self._rest_s)
            if not self._viewing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.unseen_every_s):
                        await self._looked_at.wait()
            if self._source.lives:
                self._look()

    def _look(self) -> None:
        began = perf_counter()
        self._show(self._source.picture())
        self._looked_s = perf_counter()
        self._took_s = self._looked_s - began

    @property
    def _rest_s(self) -> float:
        """Seconds between the end of a picture and the start of the next one."""
        return max(self._options.every_s, _REST * self._took_s)

    async def close(self) -> None:
        """End all streams, and stop listening."""
        self._closing = True
        self._moved.set()
        if self._comparisons is not None:
            await self._comparisons.close()
        await self._server.close(self._options.close_s)

    def _show(self, picture: Picture) -> None:
        self._picture = picture
        self._history.see(picture)
        self._views.clear()
        self._encoded.clear()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- answers ---

    async def _answer(self, request: web.BaseRequest) -> HttpAnswer | HttpStream:
        host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        if self._on_loopback and not is_loopback(host):
            return _problem(421, "use the address that weft console printed")
        if request.method not in ("GET", "HEAD"):
            return _problem(405, "the console is read-only; use GET")
        first, _, rest = request.path.removeprefix("/").partition("/")
        if first == "api":
            return await self._data(request, rest)
        if request.path == "/healthz":
            return HttpAnswer(200, b"ok", "text/plain; charset=utf-8", headers=HEADERS)
        name = "index.html" if first in VIEWS else rest if first == "static" else ""
        return _file(name)

    async def _data(self, request: web.BaseRequest, what: str) -> HttpAnswer | HttpStream:
        rights = await self._rights(request)
        if isinstance(rights, PermissionRefusal):
            return _problem(*rights)
        match what:
            case "about":
                answer: HttpAnswer | HttpStream = _json(self._about(rights))
            case "picture" if request.method == "GET":
                answer = HttpStream(self._updates(request, rights), "text/event-stream", HEADERS)
            case "explain":
                answer = await self._explain(request, rights)
            case "history":
                answer = _json(self._gpus_history(request.query.get("gpu", "")))
            case "health":
                answer = await self._checked(rights)
            case "compare" if self._comparisons is not None:
                answer = _compared(self._comparisons, request)
            case "moment" if isinstance(self._source, RecordedSource):
                answer = _moment(self._source, request.query.get("number", ""))
            case _:
                answer = _problem(404, "there is no such page")
        return answer

    def _about(self, rights: ViewerRights) -> AboutConsole:
        source = self._source
        about = AboutConsole(weft.__version__, source.kind, source.about, source.lives)
        if isinstance(source, RecordedSource):
            moments, trouble = source.record
            about = replace(about, moments=moments, trouble=trouble)
        if self._comparisons is not None:
            about = replace(about, policies=self._comparisons.policies)
        return replace(about, health=self._health is not None and rights.everywhere)

    def _gpus_history(self, gpu: str) -> list[GpuPoint]:
        if isinstance(self._source, RecordedSource):
            return self._source.history(gpu)
        return self._history.of(gpu)

    async def _checked(self, rights: ViewerRights) -> HttpAnswer:
        """Answer with the findings of `weft status` if the viewer may list all namespaces' pods,
        as the findings name them."""
        if self._health is None:
            return _problem(404, "only a live cluster can be checked")
        if not rights.everywhere:
            return _problem(
                403, "the checks name all namespaces' pods; you have no permission to list those"
            )
        try:
            return _json(await self._health.page())
        except WeftError as error:
            return _problem(503, f"the cluster could not be checked: {error}")

    async def _explain(self, request: web.BaseRequest, rights: ViewerRights) -> HttpAnswer:
        namespace, name = request.query.get("namespace", ""), request.query.get("name", "")
        nobody = _problem(404, f"there is no pod {namespace}/{name}")
        if not rights.may_see(namespace):
            return nobody
        explanation = await self._source.explain(namespace, name)
        if explanation is None:
            return nobody
        hiding, everything = Hiding(rights, self._secret), rights.everywhere
        picture = self._picture
        return _json(PodExplanation.of(explanation, hiding, picture, everything=everything))

    async def _rights(self, request: web.BaseRequest) -> ViewerRights | PermissionRefusal:
        if self._viewers is None:
            return ALL
        asked = request.query.get("namespace", "")
        also = {asked} if _NAMESPACE.fullmatch(asked) else frozenset[str]()
        return await self._viewers.rights(request, lambda: namespaces_of(self._picture) | also)

    def _seen_by(self, rights: ViewerRights) -> Picture:
        """Return the present picture as this viewer may see it; viewers with equal rights share
        it."""
        if rights.everywhere:
            return self._picture
        view = self._views.get(rights)
        if view is None:
            view = self._views[rights] = Hiding(rights, self._secret).picture(self._picture)
        return view

    async def _updates(
        self, request: web.BaseRequest, rights: ViewerRights
    ) -> AsyncGenerator[bytes, None]:
        """Yield the whole picture, then deltas; a slow browser gets fewer, larger ones."""
        self._begin_viewing()
        try:
            async with contextlib.aclosing(self._pictures(request, rights)) as pictures:
                async for each in pictures:
                    yield each
        finally:
            self._viewing -= 1
            if not self._viewing:
                self._looked_at.clear()

    def _begin_viewing(self) -> None:
        """Count one more viewer; for the first one take a new picture, if none was taken just now,
        and let `run` take further pictures."""
        rested = perf_counter() - self._looked_s >= self._rest_s
        if not self._viewing and self._source.lives and rested:
            self._look()
        self._viewing += 1
        self._looked_at.set()

    async def _pictures(
        self, request: web.BaseRequest, rights: ViewerRights
    ) -> AsyncGenerator[bytes, None]:
        seen, of = self._seen_by(rights), self._picture
        yield _event("picture", msgspec.json.encode(seen))
        while not self._closing:
            moved = self._moved
            if of is self._picture:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.keepalive_s):
                        await moved.wait()
            now_may = await self._rights(request)  # a token ends, and rights are taken
            if isinstance(now_may, PermissionRefusal):
                if now_may.status != _UNANSWERED:
                    yield _event("refused", msgspec.json.encode(ProblemBody(now_may.text)))
                return
            if of is self._picture and now_may == rights:
                yield b": nothing changed\n\n"
                continue
            rights, of = now_may, self._picture
            now = self._seen_by(rights)
            yield self._delta(seen, now)
            seen = now

    def _delta(self, seen: Picture, now: Picture) -> bytes:
        """Return the delta between two pictures; encoded once for all browsers."""
        known = self._encoded.get((id(seen), id(now)))
        if known is None:
            text = _event("delta", msgspec.json.encode(between(seen, now)))
            known = self._encoded[id(seen), id(now)] = seen, text
        return known[1]


def _moment(source: RecordedSource, number: str) -> HttpAnswer:
    if not re.fullmatch("[0-9]{1,9}", number):
        return _problem(400, "number: specify which moment, from 0")
    if int(number) >= len(source.record.at_s):
        return _problem(404, f"there is no moment {int(number)}")
    return _json(source.at(int(number)))


def _compared(comparisons: Comparisons, request: web.BaseRequest) -> HttpAnswer:
    policy, number = request.query.get("policy", ""), request.query.get("number")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return _problem(403, "only the console's page may start a comparison, which takes CPU time")
    if policy not in comparisons.policies:
        return _problem(404, f"there is no policy {policy}")
    if number is None:
        return _json(comparisons.day(policy))
    if not re.fullmatch("[0-9]{1,9}", number):
        return _problem(400, "number: specify which moment, from 0")
    try:
        both = comparisons.pictures(policy, int(number))
    except IndexError:
        return _problem(404, f"there is no moment {int(number)}")
    return (
        _problem(404, "the day under this policy is not simulated yet")
        if both is None
        else _json(both)
    )


def _event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _json(value: object) -> HttpAnswer:
    return HttpAnswer(200, msgspec.json.encode(value), headers=HEADERS)


def _problem(status: int, text: str) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode(ProblemBody(text)), headers=HEADERS)


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the browser's files, with their types, by name."""
    found = (files("weft.console") / "static").iterdir()
    return {
        file.name: (file.read_bytes(), _TYPES["." + file.name.rpartition(".")[2]])
        for file in found
        if "." + file.name.rpartition(".")[2] in _TYPES
    }


def _file(name: str) -> HttpAnswer:
    found = static_files().get(name)
    if found is None:
        return _problem(404, "there is no such page")
    return HttpAnswer(200, found[0], found[1], headers=HEADERS)
