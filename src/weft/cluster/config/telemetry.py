"""Checks of the section `telemetry` beyond types and bounds: addresses, files, names."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from weft.cluster.config.addresses import check_url, is_label
from weft.cluster.config.form import TelemetrySettings
from weft.model import BadInputError
from weft.telemetry.meaning.metric_names import Metric

MOST_SAMPLES = 240
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OF_CONNECTION = frozenset(
    (
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_MATCHER = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(\\.|[^"\\\n])*"\s*'
_SELECTOR = re.compile(f"{_MATCHER}(,{_MATCHER})*")
_LABEL = r"([A-Za-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_LABELS = re.compile(
    f"!?{_LABEL}((=|==|!=)[A-Za-z0-9._-]*)?(,!?{_LABEL}((=|==|!=)[A-Za-z0-9._-]*)?)*"
)


def check_telemetry(found: TelemetrySettings) -> None:
    """`BadInputError` with the field as its place."""
    _check_times(found)
    _check_sources(found)
    _check_access(found)
    if found.selector and not _SELECTOR.fullmatch(found.selector):
        what = f'{found.selector!r} is no selector; write what stands between {{}}: cluster="a"'
        raise _bad("selector", what)
    for i, own in enumerate(found.names):
        if not _METRIC_NAME.fullmatch(own.name):
            raise _bad(f"names[{i}].name", f"{own.name!r} is no metric's name")
        if own.metric not in list(Metric):
            known = ", ".join(Metric)
            raise _bad(f"names[{i}].metric", f"{own.metric!r} is unknown; write one of {known}")
        if own.name in {earlier.name for earlier in found.names[:i]}:
            raise _bad(f"names[{i}].name", f"{own.name!r} has a meaning already; keep one")


def telemetry_files(found: TelemetrySettings) -> Iterator[tuple[str, str, str]]:
    """(field, file or "", what it has to be) of every file that the section may name."""
    for field, name, kind in (
        ("passwordFile", found.password_file, "a file with a password"),
        ("bearerTokenFile", found.bearer_token_file, "a file with a token"),
        ("authorityFile", found.authority_file, "a PEM file"),
        ("certificateFile", found.certificate_file, "a PEM file"),
        ("keyFile", found.key_file, "a PEM file"),
    ):
        yield f"telemetry.{field}", name, kind


def _check_times(found: TelemetrySettings) -> None:
    if found.window_seconds < 2 * found.interval_seconds:
        raise _bad("windowSeconds", f"{found.window_seconds:g} is less than two intervalSeconds")
    if found.window_seconds > MOST_SAMPLES * found.interval_seconds:
        what = f"{found.window_seconds:g} is more than {MOST_SAMPLES} intervalSeconds"
        raise _bad("windowSeconds", what)
    if found.horizon_seconds > found.window_seconds:
        raise _bad("horizonSeconds", f"{found.horizon_seconds:g} is more than windowSeconds")


def _check_sources(found: TelemetrySettings) -> None:
    named = [
        field
        for field, value in (
            ("url", found.url),
            ("exporters", found.exporters),
            ("discover", found.discover),
        )
        if value
    ]
    if len(named) > 1:
        raise _bad(named[1], f"and {named[0]} exclude each other; keep one")
    if found.url:
        check_url(found.url, "telemetry.url")
    if found.exporters:
        if "{address}" not in found.exporters and "{node}" not in found.exporters:
            what = f"{found.exporters!r} is the same for every node; write {{address}} or {{node}}"
            raise _bad("exporters", what)
        page = found.exporters.replace("{address}", "127.0.0.1").replace("{node}", "node")
        try:
            check_url(page, "telemetry.exporters")
        except BadInputError:
            what = f"{found.exporters!r} is no URL of a page; write http://{{address}}:9400/metrics"
            raise _bad("exporters", what) from None
    for i, namespace in enumerate(found.namespaces):
        if not is_label(namespace):
            what = f"{namespace!r} is no namespace; write lower-case letters, digits and -"
            raise _bad(f"namespaces[{i}]", what)
    if found.discover == "exporters" and not found.exporter_selectors:
        raise _bad("exporterSelectors", "is empty; name at least one")
    for i, selector in enumerate(found.exporter_selectors):
        if not _LABELS.fullmatch(selector):
            what = f"{selector!r} is no label selector; write app=dcgm-exporter"
            raise _bad(f"exporterSelectors[{i}]", what)


def _check_access(found: TelemetrySettings) -> None:
    if found.username and found.bearer_token_file:
        raise _bad("username", "and bearerTokenFile exclude each other; keep one")
    for one, other, first, second in (
        ("username", "passwordFile", found.username, found.password_file),
        ("certificateFile", "keyFile", found.certificate_file, found.key_file),
    ):
        if bool(first) != bool(second):
            has, lacks = (one, other) if first else (other, one)
            raise _bad(has, f"belongs together with {lacks}; write both")
    if not found.verify and found.authority_file:
        raise _bad("verify", "false contradicts authorityFile; keep one of the two")
    plain = urlsplit(found.url or found.exporters).scheme == "http"
    for field, name in (
        ("authorityFile", found.authority_file),
        ("certificateFile", found.certificate_file),
    ):
        if name and plain:
            raise _bad(field, "says nothing to an http:// address; write https:// or leave it out")
    for name, text in found.headers.items():
        at = f"headers[{name}]"
        if not _HEADER.fullmatch(name) or not (text.isascii() and text.isprintable()):
            raise _bad(at, "is no HTTP header; write printable ASCII on one line")
        if name.lower() in _OF_CONNECTION:
            raise _bad(at, "is the connection's own and not to be set; leave it out")
        if name.lower() == "authorization":
            what = "would be in this file for all to read; write username or bearerTokenFile"
            raise _bad(at, what)
    secret = found.username or found.bearer_token_file or found.headers
    if found.discover and secret and not found.namespaces:
        what = "is empty: anyone who may make a Service could ask for the credentials; name some"
        raise _bad("namespaces", what)


def _bad(field: str, what: str) -> BadInputError:
    return BadInputError(f"telemetry.{field}", what)
