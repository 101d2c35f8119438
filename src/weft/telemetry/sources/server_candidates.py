"""Finds Services that are metrics servers, in the order in which they are worth a try. Pure.

A Service says so itself by an annotation, or it is called as such servers usually are. Nothing is
asked here: `MetricsServer.gpus` is found out by whoever asks
(`cluster/telemetry/server_discovery`). Weft may reach what those who make Services cannot, so a
Service must be about pods of its own namespace: none that is another name (ExternalName), and one
whose endpoints are made by hand only where its namespace is trusted.

    weft.dev/prometheus: "true"                 "false": never, whatever it is called
    weft.dev/prometheus-port: web               name or number; else the first that looks like HTTP
    weft.dev/prometheus-scheme: https           else by the port's name and number
    weft.dev/prometheus-path: /prometheus       what stands before /api/v1
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from weft.kube.services import Service, ServicePort, proxy_path
from weft.model.annotations import PROMETHEUS, PROMETHEUS_PATH, PROMETHEUS_PORT, PROMETHEUS_SCHEME

MOST_TRIED = 16
_MOST_ALIKE = 2
"""Servers of one rank in one namespace that are tried."""
_MOST_SHOWN, _MOST_PATH = 64, 253

_PORT_NAMES = ("web", "http", "http-web", "http-query", "http-metrics", "https", "https-web")
_PORT_NUMBERS = (9090, 9091, 10902, 8428, 8429, 8481, 8080, 80, 443)
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")


class ServerKind(NamedTuple):
    """A sort of server. `names` are of Services, or of `app.kubernetes.io/name` with one of
    `components` (none: any); `path` stands before /api/v1."""

    title: str
    names: frozenset[str]
    components: frozenset[str] = frozenset()
    path: str = ""


KINDS = (
    ServerKind(
        "Prometheus",
        frozenset({"prometheus", "kube-prometheus-stack-prometheus"})
        | {f"prometheus-{suffix}" for suffix in ("operated", "k8s", "server")},
        frozenset({"", "server", "prometheus"}),
    ),
    ServerKind(
        "Thanos",
        frozenset({"thanos", "thanos-query", "thanos-querier", "thanos-query-frontend"}),
        frozenset({"", "query", "querier", "query-layer", "query-frontend"}),
    ),
    ServerKind(
        "Mimir",
        frozenset({"mimir", "mimir-query-frontend", "mimir-nginx", "mimir-gateway"}),
        frozenset({"", "query-frontend", "nginx", "gateway"}),
        "/prometheus",
    ),
    ServerKind(
        "VictoriaMetrics",
        frozenset({"vmsingle", "victoria-metrics-single"}),
        frozenset({"", "server", "monitoring"}),
    ),
    ServerKind(
        "VictoriaMetrics",
        frozenset({"vmselect"}),
        frozenset({"", "vmselect", "monitoring"}),
        "/select/0/prometheus",
    ),
)
"""Nearest first: what keeps the samples itself before what gathers them from others."""


class MetricsServer(NamedTuple):
    """A Service to ask. `rank` orders them, the smallest first; `why` says what makes it one."""

    rank: int
    namespace: str
    name: str
    scheme: str
    port: str
    path: str
    why: str

    @property
    def url(self) -> str:
        """Its URL inside the cluster; only a port by number is an address."""
        return f"{self.scheme}://{self.name}.{self.namespace}.svc:{self.port}{self.path}"

    @property
    def proxied(self) -> str:
        """The path to it through the API server."""
        before = proxy_path("services", self.namespace, self.name, self.port, self.scheme)
        return before + self.path

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"Service {self.namespace}/{self.name}"


class ServerCandidates(NamedTuple):
    """The servers, best first, and what is wrong with Services that say they are one."""

    servers: list[MetricsServer]
    problems: list[str]


def offers(services: Iterable[Service], trusted: Collection[str] = ()) -> ServerCandidates:
    """The metrics servers among these; the same in whatever order they come.

    In the `trusted` namespaces endpoints may be made by hand.
    """
    servers, problems = [], []
    for service in services:
        offer = _server(service)
        if isinstance(offer, MetricsServer):
            offer = _elsewhere(service, trusted) or offer
        if isinstance(offer, MetricsServer):
            servers.append(offer)
        elif offer:
            problems.append(offer)
    return ServerCandidates(sorted(servers), sorted(problems))


def to_try(servers: Sequence[MetricsServer]) -> list[MetricsServer]:
    """Order servers to ask: the best of each namespace, then their second best.

    Whoever fills a namespace with offers so hides none of another one.
    """
    alike: Counter[tuple[str, int]] = Counter()
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, MetricsServer]] = []
    for server in servers:
        alike[server.namespace, server.rank] += 1
        if alike[server.namespace, server.rank] <= _MOST_ALIKE:
            turns[server.namespace] += 1
            ranked.append((turns[server.namespace], server))
    return [server for _, server in sorted(ranked)[:MOST_TRIED]]


def _elsewhere(service: Service, trusted: Collection[str]) -> str:
    """The reason why the Service may lead out of its namespace's pods; "" where it cannot."""
    namespace = service.metadata.namespace
    at = f"Service {namespace}/{service.metadata.name}"
    if service.spec.type == "ExternalName":
        return f"{at}: an ExternalName is not asked; name a url instead"
    if not service.spec.selector and namespace not in trusted:
        return f"{at}: no selector; asked only where telemetry.namespaces has {namespace}"
    return ""


def _server(service: Service) -> MetricsServer | str:
    """The server, what is wrong with it, or "" where the Service is none."""
    meta = service.metadata
    marks = meta.annotations or {}
    annotated = marks.get(PROMETHEUS)
    at = f"Service {meta.namespace}/{meta.name}"
    if annotated is not None and annotated not in {"true", "false"}:
        return f'{at}: {PROMETHEUS} is {_shown(annotated)}; write "true" or "false"'
    kind = next(((n, kind) for n, kind in enumerate(KINDS) if _is(service, kind)), None)
    if annotated == "false" or (annotated is None and kind is None):
        return ""
    port = _port(service, marks.get(PROMETHEUS_PORT, ""))
    if port is None:
        return f"{at}: no port to ask: {PROMETHEUS_PORT} names one" if annotated else ""
    scheme = marks.get(PROMETHEUS_SCHEME) or _scheme(port)
    if scheme not in {"http", "https"}:
        return f"{at}: {PROMETHEUS_SCHEME} is {_shown(scheme)}; write http or https"
    path = marks.get(PROMETHEUS_PATH, kind[1].path if kind else "")
    if len(path) > _MOST_PATH or _PATH.fullmatch(path) is None:
        return f"{at}: {PROMETHEUS_PATH} is {_shown(path)}; write one such as /prometheus"
    rank, why = (0, f"annotated {PROMETHEUS}") if annotated else (0, "")
    if kind is not None and not annotated:
        rank, why = 1 + kind[0], f"called as {kind[1].title} usually is"
    return MetricsServer(
        rank, meta.namespace, meta.name, scheme, str(port.port), path.rstrip("/"), why
    )


def _shown(text: str) -> str:
    return repr(text[:_MOST_SHOWN])


def _is(service: Service, kind: ServerKind) -> bool:
    """True if the Service is called as servers of this kind usually are."""
    labels = service.metadata.labels or {}
    component = labels.get("app.kubernetes.io/component", "")
    if service.metadata.name in kind.names:
        return True
    called = {labels.get("app.kubernetes.io/name", ""), labels.get("app", "")}
    return bool(called & kind.names) and component in kind.components


def _port(service: Service, wanted: str) -> ServicePort | None:
    """The port that is wanted, by name or number, or the first that looks like HTTP."""
    ports = [port for port in service.spec.ports or () if port.protocol == "TCP"]
    if wanted:
        return next((port for port in ports if wanted in (port.name, str(port.port))), None)
    by_name = {port.name: port for port in reversed(ports)}
    by_number = {port.port: port for port in reversed(ports)}
    candidates = [by_name[name] for name in _PORT_NAMES if name in by_name]
    candidates += [by_number[number] for number in _PORT_NUMBERS if number in by_number]
    return next(iter(candidates), None)


def _scheme(port: ServicePort) -> str:
    secure = port.name.startswith("https") or port.app_protocol.lower() == "https"
    return "https" if secure or port.port == 443 else "http"
