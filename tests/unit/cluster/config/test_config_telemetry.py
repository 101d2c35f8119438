"""The section `telemetry`: what it becomes, and what is said about a wrong one."""

from pathlib import Path

import pytest

from weft.cluster.config.form import Configuration
from weft.cluster.config.read import decode, read
from weft.model import BadInputError

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def config(text: str) -> Configuration:
    return decode((HEAD + text).encode(), "weft.yaml")


def test_one_server_is_all_it_takes() -> None:
    found = config("telemetry: {url: 'http://prometheus:9090'}").telemetry
    assert (found.url, found.interval_seconds, found.window_seconds) == (
        "http://prometheus:9090",
        15,
        300,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{url: 'prometheus:9090'}", "url: 'prometheus:9090' is no URL of a server; write http"),
        ("{url: 'http://me:word@p:9090'}", "url: 'http://***@p:9090' is no URL of a server"),
        ("{url: 'http://p:99999'}", "url: 'http://p:99999' is no URL of a server"),
        ("{url: 'http://p:9090/api?x=1'}", "url: 'http://p:9090/api?x=1' is no URL of a server"),
        ("{exporters: 'http://localhost:9400/metrics'}", "exporters: 'http://localhost:9400/metr"),
        ("{exporters: '{address}:9400'}", "exporters: '{address}:9400' is no URL of a page"),
        ("{discover: servers}", "discover: Invalid enum value 'servers'"),
        ("{discover: nonsense}", "discover: Invalid enum value 'nonsense'; write one of '', "),
        ("{url: 'http://p', discover: exporters}", "discover: and url exclude each other"),
        ("{discover: exporters, exporterSelectors: []}", "exporterSelectors: is empty"),
        ("{exporterSelectors: ['a b']}", "exporterSelectors[0]: 'a b' is no label selector"),
        ("{namespaces: [A_b]}", "namespaces[0]: 'A_b' is no namespace"),
        ("{discover: exporters, bearerTokenFile: /t}", "namespaces: is empty: anyone who may make"),
        ("{discover: exporters, headers: {X-Scope-OrgID: a}}", "namespaces: is empty: anyone"),
        ("{intervalSeconds: .nan}", "intervalSeconds: nan is no finite number"),
        ("{timeoutSeconds: .inf}", "timeoutSeconds: inf is no finite number"),
        ("{scrapeSeconds: 100000}", "scrapeSeconds: 100000 is more than a day"),
        ("{username: a}", "username: belongs together with passwordFile"),
        ("{passwordFile: /p}", "passwordFile: belongs together with username"),
        ("{certificateFile: /c}", "certificateFile: belongs together with keyFile"),
        ("{keyFile: /k}", "keyFile: belongs together with certificateFile"),
        ("{verify: false, authorityFile: /a}", "verify: false contradicts authorityFile"),
        ("{url: 'http://p', authorityFile: /a}", "authorityFile: says nothing to an http://"),
        ("{headers: {'a b': c}}", "headers[a b]: is no HTTP header"),
        ('{headers: {a: "b\\r\\nc: d"}}', "headers[a]: is no HTTP header"),
        ('{headers: {a: "b\\x1bc"}}', "headers[a]: is no HTTP header"),
        ('{headers: {a: "b\\x7f"}}', "headers[a]: is no HTTP header"),
        ("{headers: {Host: other}}", "headers[Host]: is the connection's own and not to be set"),
        ("{headers: {content-length: '5'}}", "headers[content-length]: is the connection's own"),
        ("{headers: {Transfer-Encoding: chunked}}", "headers[Transfer-Encoding]: is the connect"),
        ("{headers: {Connection: close}}", "headers[Connection]: is the connection's own"),
        ("{headers: {TE: trailers}}", "headers[TE]: is the connection's own"),
        ("{headers: {authorization: Bearer x}}", "headers[authorization]: would be in this file"),
        ("{selector: 'cluster=a'}", "selector: 'cluster=a' is no selector"),
        ("{selector: '{cluster=\"a\"}'}", "selector: '{cluster=\"a\"}' is no selector"),
        ("{names: [{name: 'a-b', metric: power_w}]}", "names[0].name: 'a-b' is no metric's name"),
        ("{names: [{name: a, metric: power_w, scale: -1}]}", "names[0].scale: -1.0 is no scale"),
        (
            "{names: [{name: a, metric: power_w}, {name: a, metric: power_w}]}",
            "names[1].name: 'a' ",
        ),
        ("{url: 'http://p', exporters: 'http://{address}:9400'}", "exporters: and url exclude"),
        ("{intervalSeconds: 0}", "intervalSeconds: 0.0 must be more than 0"),
        ("{timeoutSeconds: -1}", "timeoutSeconds: -1.0 must be more than 0"),
        ("{windowSeconds: 20}", "windowSeconds: 20 is less than two intervalSeconds"),
        ("{windowSeconds: 86400}", "windowSeconds: 86400 is more than 240 intervalSeconds"),
        ("{horizonSeconds: 900}", "horizonSeconds: 900 is more than windowSeconds"),
        ("{username: a, bearerTokenFile: /t}", "username: and bearerTokenFile exclude"),
        ("{names: [{name: a, metric: b}]}", "names[0].metric: 'b' is unknown; write one of"),
        ("{names: [{name: a}]}", "names[0]: Object missing required field `metric`"),
    ],
)
def test_a_wrong_section_is_told_by_field(text: str, told: str) -> None:
    with pytest.raises(BadInputError) as error:
        config(f"telemetry: {text}")
    assert str(error.value).startswith(f"weft.yaml: telemetry.{told}")


def test_selectors_as_promql_and_kubernetes_have_them() -> None:
    found = config(
        'telemetry: {selector: \'cluster="a", job=~"dcgm.*"\', discover: exporters,'
        " exporterSelectors: ['app=x,!gone', 'a.io/b!=c']}"
    ).telemetry
    assert found.selector == 'cluster="a", job=~"dcgm.*"'
    assert found.exporter_selectors == ("app=x,!gone", "a.io/b!=c")


def test_a_file_that_is_not_there_is_told_by_field(tmp_path: Path) -> None:
    (tmp_path / "weft.yaml").write_text(
        HEAD + "telemetry: {url: 'https://p', bearerTokenFile: /nowhere/token}"
    )
    with pytest.raises(BadInputError) as error:
        read(tmp_path / "weft.yaml")
    assert "telemetry.bearerTokenFile: /nowhere/token cannot be read: No such" in str(error.value)
