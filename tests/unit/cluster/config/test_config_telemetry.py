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
        ("{url: 'prometheus:9090'}", "url: 'prometheus:9090' is not a server's URL; write http"),
        ("{url: 'http://me:word@p:9090'}", "url: 'http://***@p:9090' is not a server's URL"),
        ("{url: 'http://p:99999'}", "url: 'http://p:99999' is not a server's URL"),
        ("{url: 'http://p:9090/api?x=1'}", "url: 'http://p:9090/api?x=1' is not a server's URL"),
        ("{exporters: 'http://localhost:9400/metrics'}", "exporters: 'http://localhost:9400/metr"),
        ("{exporters: '{address}:9400'}", "exporters: '{address}:9400' is not a page's URL"),
        ("{discover: servers}", "discover: Invalid enum value 'servers'"),
        ("{discover: nonsense}", "discover: Invalid enum value 'nonsense'; write one of '', "),
        ("{url: 'http://p', discover: exporters}", "discover: cannot be set together with url"),
        ("{discover: exporters, exporterSelectors: []}", "exporterSelectors: is empty"),
        ("{exporterSelectors: ['a b']}", "exporterSelectors[0]: 'a b' is not a label selector"),
        ("{namespaces: [A_b]}", "namespaces[0]: 'A_b' is not a namespace"),
        (
            "{discover: exporters, bearerTokenFile: /t}",
            "namespaces: is empty: anyone who may create",
        ),
        ("{discover: exporters, headers: {X-Scope-OrgID: a}}", "namespaces: is empty: anyone"),
        ("{intervalSeconds: .nan}", "intervalSeconds: nan is not a finite number"),
        ("{timeoutSeconds: .inf}", "timeoutSeconds: inf is not a finite number"),
        ("{scrapeSeconds: 100000}", "scrapeSeconds: 100000 is more than a day"),
        ("{username: a}", "username: belongs together with passwordFile"),
        ("{passwordFile: /p}", "passwordFile: belongs together with username"),
        ("{certificateFile: /c}", "certificateFile: belongs together with keyFile"),
        ("{keyFile: /k}", "keyFile: belongs together with certificateFile"),
        ("{verify: false, authorityFile: /a}", "verify: false contradicts authorityFile"),
        ("{url: 'http://p', authorityFile: /a}", "authorityFile: has no effect for an http://"),
        ("{headers: {'a b': c}}", "headers[a b]: is not an HTTP header"),
        ('{headers: {a: "b\\r\\nc: d"}}', "headers[a]: is not an HTTP header"),
        ('{headers: {a: "b\\x1bc"}}', "headers[a]: is not an HTTP header"),
        ('{headers: {a: "b\\x7f"}}', "headers[a]: is not an HTTP header"),
        ("{headers: {Host: other}}", "headers[Host]: is set by the connection itself"),
        (
            "{headers: {content-length: '5'}}",
            "headers[content-length]: is set by the connection itself",
        ),
        (
            "{headers: {Transfer-Encoding: chunked}}",
            "headers[Transfer-Encoding]: is set by the connect",
        ),
        ("{headers: {Connection: close}}", "headers[Connection]: is set by the connection itself"),
        ("{headers: {TE: trailers}}", "headers[TE]: is set by the connection itself"),
        (
            "{headers: {authorization: Bearer x}}",
            "headers[authorization]: would put a secret into this file",
        ),
        ("{selector: 'cluster=a'}", "selector: 'cluster=a' is not a selector"),
        ("{selector: '{cluster=\"a\"}'}", "selector: '{cluster=\"a\"}' is not a selector"),
        ("{names: [{name: 'a-b', metric: power_w}]}", "names[0].name: 'a-b' is not a metric name"),
        ("{names: [{name: a, metric: power_w, scale: -1}]}", "names[0].scale: -1.0 is not a scale"),
        (
            "{names: [{name: a, metric: power_w}, {name: a, metric: power_w}]}",
            "names[1].name: 'a' ",
        ),
        (
            "{url: 'http://p', exporters: 'http://{address}:9400'}",
            "exporters: cannot be set together with url; keep one",
        ),
        ("{intervalSeconds: 0}", "intervalSeconds: 0.0 must be more than 0"),
        ("{timeoutSeconds: -1}", "timeoutSeconds: -1.0 must be more than 0"),
        ("{windowSeconds: 20}", "windowSeconds: 20 is less than twice intervalSeconds"),
        ("{windowSeconds: 86400}", "windowSeconds: 86400 is more than 240 times intervalSeconds"),
        ("{horizonSeconds: 900}", "horizonSeconds: 900 is more than windowSeconds"),
        (
            "{username: a, bearerTokenFile: /t}",
            "username: cannot be set together with bearerTokenFile; keep one",
        ),
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
