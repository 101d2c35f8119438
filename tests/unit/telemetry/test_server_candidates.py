"""Which Services are metrics servers, in which order, and how they are reached."""

import itertools
from typing import Any

import msgspec
import pytest

from weft.kube.services import Service
from weft.telemetry.sources.server_candidates import MOST_TRIED, MetricsServer, offers, to_try


def service(
    name: str, *ports: tuple[str, int], labels: dict[str, str] | None = None, **marks: str
) -> Service:
    """In the namespace monitoring; `marks` are annotations: `port` is weft.dev/prometheus-port."""
    domain = "weft.dev/prometheus"
    said = {domain + ("" if key == "is" else f"-{key}"): text for key, text in marks.items()}
    told = [{"name": port, "port": number} for port, number in ports or (("web", 9090),)]
    meta = {"name": name, "namespace": "monitoring", "labels": labels or {}, "annotations": said}
    spec = {"ports": told, "selector": {"app": name}}
    return msgspec.convert({"metadata": meta, "spec": spec}, Service)


def urls(*services: Service) -> list[str]:
    return [server.url for server in offers(services).servers]


def test_a_service_that_says_so_comes_first_whatever_it_is_called() -> None:
    found = [
        service("prometheus-k8s"),
        service("thanos-query", ("http", 10902)),
        service("ours", ("grpc", 9999), ("http", 8080), **{"is": "true", "path": "/prom/"}),
        service("web-shop", ("http", 80)),
        service("alertmanager-main", ("web", 9093)),
    ]
    wanted = [
        "http://ours.monitoring.svc:8080/prom",
        "http://prometheus-k8s.monitoring.svc:9090",
        "http://thanos-query.monitoring.svc:10902",
    ]
    for order in itertools.permutations(found):
        assert urls(*order) == wanted


@pytest.mark.parametrize(
    ("labels", "is_one"),
    [
        ({"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}, True),
        ({"app.kubernetes.io/name": "prometheus-node-exporter"}, False),
        ({"app.kubernetes.io/name": "mimir", "app.kubernetes.io/component": "ingester"}, False),
        ({"app.kubernetes.io/name": "thanos", "app.kubernetes.io/component": "receive"}, False),
        ({"app.kubernetes.io/name": "thanos", "app.kubernetes.io/component": "query"}, True),
        ({"app": "kube-prometheus-stack-prometheus"}, True),
        ({}, False),
    ],
)
def test_labels_tell_the_part_that_answers_queries(labels: dict[str, str], is_one: bool) -> None:
    assert bool(urls(service("release-x", labels=labels))) is is_one


def test_mimir_answers_below_a_path_and_https_is_seen() -> None:
    assert urls(service("mimir-gateway", ("http-metrics", 80))) == [
        "http://mimir-gateway.monitoring.svc:80/prometheus"
    ]
    assert urls(service("thanos-query", ("https", 443))) == [
        "https://thanos-query.monitoring.svc:443"
    ]


def test_a_service_may_name_its_port_and_scheme_or_refuse() -> None:
    ports = (("web", 9090), ("tls", 9443))
    named = service("p", *ports, **{"is": "true", "port": "tls", "scheme": "https"})
    assert urls(named) == ["https://p.monitoring.svc:9443"]
    by_number = service("p", *ports, **{"is": "true", "port": "9443"})
    assert urls(by_number) == ["http://p.monitoring.svc:9443"]
    assert urls(service("prometheus", **{"is": "false"})) == []


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"is": "yes"}, 'weft.dev/prometheus is \'yes\'; write "true" or "false"'),
        ({"is": "true", "port": "none"}, "no port to ask: weft.dev/prometheus-port names one"),
        ({"is": "true", "scheme": "ftp"}, "weft.dev/prometheus-scheme is 'ftp'; write http"),
        ({"is": "true", "path": "/a" * 127}, "weft.dev/prometheus-path is '/a/a"),
        ({"is": "true", "path": "/a?b"}, "weft.dev/prometheus-path is '/a?b'; write one such"),
    ],
)
def test_a_service_that_cannot_be_meant_so_is_told(marks: dict[str, str], says: str) -> None:
    found = offers([service("ours", **marks)])
    assert found.servers == []
    (problem,) = found.problems
    assert problem.startswith(f"Service monitoring/ours: {says}")


def test_the_api_server_reaches_it_too() -> None:
    (server,) = offers([service("mimir", ("http-metrics", 8080))]).servers
    assert server.proxied == (
        "/api/v1/namespaces/monitoring/services/http:mimir:8080/proxy/prometheus"
    )


def test_ports_of_other_protocols_are_none() -> None:
    told: dict[str, Any] = {
        "metadata": {"name": "prometheus", "namespace": "m"},
        "spec": {
            "ports": [{"name": "web", "port": 9090, "protocol": "UDP"}],
            "selector": {"app": "prometheus"},
        },
    }
    assert urls(msgspec.convert(told, Service)) == []


def moved(found: Service, **spec: Any) -> Service:
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, **spec))


@pytest.mark.parametrize("name", ["prometheus", "ours"])
def test_a_name_outside_the_cluster_is_never_asked(name: str) -> None:
    """An ExternalName would make Weft ask whatever its author cannot reach himself."""
    outside = moved(service(name, **{"is": "true"}), type="ExternalName", selector=None)
    found = offers([outside], {"monitoring"})
    assert found.servers == []
    assert "ExternalName" in found.problems[0]


@pytest.mark.parametrize("name", ["prometheus", "ours"])
@pytest.mark.parametrize("selector", [None, {}])
def test_endpoints_made_by_hand_count_only_in_a_named_namespace(
    name: str, selector: dict[str, str] | None
) -> None:
    by_hand = moved(service(name, **{"is": "true"}), selector=selector)
    found = offers([by_hand])
    assert found.servers == []
    assert "telemetry.namespaces" in found.problems[0]
    assert offers([by_hand], {"elsewhere"}).servers == []
    assert [server.name for server in offers([by_hand], {"monitoring"}).servers] == [name]


def test_what_nobody_would_ask_is_no_problem() -> None:
    shop = moved(service("web-shop"), type="ExternalName", selector=None)
    assert offers([shop, moved(shop, type="ClusterIP")]) == ([], [])


def test_an_annotation_is_shown_short_and_escaped() -> None:
    (problem,) = offers([service("ours", **{"is": "\x1b[2J\n" + "x" * 100_000})]).problems
    assert len(problem) < 300
    assert problem.isprintable()


def server(namespace: str, name: str, rank: int = 0) -> MetricsServer:
    return MetricsServer(rank, namespace, name, "http", "9090", "", "")


def test_many_offers_of_one_namespace_hide_nobody_elses() -> None:
    crowd = [server("a-tenant", f"x{n:02}") for n in range(40)]
    ours = [server("monitoring", "prometheus-operated", 1), server("monitoring", "thanos-query", 2)]
    found = to_try(sorted(crowd + ours))
    assert found == [crowd[0], ours[0], crowd[1], ours[1]]
    assert len(to_try([server(f"n{n:02}", "x") for n in range(40)])) == MOST_TRIED


def test_one_namespace_may_have_servers_of_several_kinds() -> None:
    kinds = [server("monitoring", name, rank) for rank, name in enumerate("abcd")]
    assert to_try(kinds) == kinds
