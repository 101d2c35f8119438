"""Nobody reads a password in what Weft says of a URL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.config.addresses import check_url
from weft.cluster.config.form import TelemetrySettings
from weft.cluster.config.read import check_telemetry
from weft.kube.config import load
from weft.model import BadInputError
from weft.model.url_text import shown_url
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.transport import NOBODY, Direct, ResponseLimits, TelemetryError

SECRET = "hunter2"
URL = f"https://me:{SECRET}@127.0.0.1:1/api"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://a:9090/x", "http://a:9090/x"),
        ("http://me:pw@a:9090/x", "http://***@a:9090/x"),
        ("http://me@a", "http://***@a"),
        (
            "no answer from http://me:p@w@a/x@y and https://b:c@d",
            "no answer from http://***@a/x@y and https://***@d",
        ),
        ("a@b", "a@b"),
        ("http://a/?q=x@y", "http://a/?q=x@y"),
        ("http://a:9090/x@y", "http://a:9090/x@y"),
        ("http://me:p/w@a:9090/x", "http://***@a:9090/x"),
        ("http://me:p?w#@a", "http://***@a"),
        ("me:pw@a:9090", "***@a:9090"),
        ("http:/me:pw@a", "***@a"),
    ],
)
def test_user_and_password_are_not_shown(text: str, shown: str) -> None:
    assert shown_url(text) == shown


_PASSWORD = st.text(
    st.characters(codec="ascii", exclude_characters="/?#'\"\\ \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85"),
    min_size=3,
)


@given(_PASSWORD)
def test_no_password_survives(password: str) -> None:
    assert (
        shown_url(f"get http://me:{password}@host:1/x failed") == "get http://***@host:1/x failed"
    )


def test_settings_that_hold_a_password_are_refused_without_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{URL}'}}}}]\n"
    )
    refusing = [
        lambda: check_url(URL, "--url"),
        lambda: check_url(f"me:{SECRET}@a:9090", "--url"),
        lambda: check_url(f"http://me:x/{SECRET}@a:9090", "--url"),
        lambda: check_telemetry(TelemetrySettings(url=URL)),
        lambda: check_telemetry(TelemetrySettings(exporters=f"http://me:{SECRET}@{{address}}:1/")),
        lambda: check_telemetry(TelemetrySettings(exporters=f"http://me:{SECRET}@a:1/")),
        lambda: Prometheus(PrometheusOptions(url=URL)),
        lambda: Prometheus(PrometheusOptions(url=f"ftp://me:{SECRET}@a")),
        lambda: load("c", paths=(config,)),
    ]
    for refuse in refusing:
        with pytest.raises(BadInputError) as caught:
            refuse()
        assert SECRET not in str(caught.value)
        assert "***@" in str(caught.value)


async def test_a_server_that_cannot_be_reached_is_named_without_it() -> None:
    direct = Direct(f"http://me:{SECRET}@127.0.0.1:1", NOBODY, ResponseLimits(timeout_s=5))
    try:
        with pytest.raises(TelemetryError) as caught:
            await direct.request("/api", {})
    finally:
        await direct.close()
    assert SECRET not in str(caught.value)
    assert "http://***@127.0.0.1:1/api" in str(caught.value)
