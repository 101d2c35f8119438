"""The section `telemetry`: what it becomes, and what is said about a wrong one."""

import pytest

from weft.config.form import Configuration
from weft.config.read import decode
from weft.model import BadInputError

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def config(text: str) -> Configuration:
    return decode((HEAD + text).encode(), "weft.yaml")


def test_one_server_is_all_it_takes() -> None:
    found = config("telemetry: {url: 'http://prometheus:9090'}").telemetry
    assert (found.url, found.interval_seconds, found.window_seconds) == (
        "http://prometheus:9090", 15, 300,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{url: 'prometheus:9090'}", "url: 'prometheus:9090' is no http:// or https:// URL"),
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
