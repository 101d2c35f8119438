"""Reads a configuration file; errors name the file, the field and the fix.

This module imports no decision code, because the node's agent reads the same file."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from weft.cluster.config.addresses import check_url, is_label
from weft.cluster.config.bounds import check_bounds, from_builtins
from weft.cluster.config.form import (
    API_VERSION,
    BY_AUTO,
    BY_SCHEDULER_NAME,
    KIND,
    Configuration,
    ExtenderSettings,
    InterferenceSettings,
    TelemetrySettings,
)
from weft.files.form import place, read_document
from weft.files.reading import read_bytes
from weft.model import BadInputError
from weft.model.metric import Metric
from weft.model.nearest import unknown
from weft.model.url_text import shown_url

_ROUTE = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)


def read(path: Path) -> Configuration:
    """Read the configuration in this file, and check everything that can be checked without a
    cluster."""
    text = read_bytes(path)
    config = decode(text, str(path))
    _check_files(config, str(path))
    return config


def decode(text: bytes, where: str) -> Configuration:
    """Decode a configuration; errors name it as `where`."""
    empty = "is empty; write apiVersion: weft.dev/v1 and the settings that differ from the defaults"
    document = read_document(text, where, API_VERSION, KIND, empty=empty)
    try:
        config = from_builtins(document)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from error
    _check(config, where)
    return config


def _check_profiles(config: Configuration, where: str) -> None:
    names = [profile.scheduler_name for profile in config.profiles]
    if not names:
        raise BadInputError(place(where, "profiles"), "is empty; name at least one schedulerName")
    for i, profile in enumerate(config.profiles):
        at = f"profiles[{i}]"
        name = profile.scheduler_name
        if not name or name in names[:i]:
            what = f"{name!r} is taken by an earlier profile" if name else "is empty"
            raise BadInputError(place(where, f"{at}.schedulerName"), what)
        if not profile.policies:
            raise BadInputError(place(where, f"{at}.policies"), "is empty; name a policy")


def _check(config: Configuration, where: str) -> None:
    """Check rules that types and bounds cannot express."""
    _check_profiles(config, where)
    try:
        check_bounds(config)
        check_telemetry(config.telemetry)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from error
    client, lease = config.client, config.lease
    needs_s = 2 * client.request_timeout_seconds + lease.renew_seconds + 1
    if lease.enabled and needs_s >= lease.duration_seconds:
        raise BadInputError(
            place(where, "lease.durationSeconds"),
            f"{lease.duration_seconds} leaves no time to bind: twice client.requestTimeoutSeconds, "
            f"lease.renewSeconds and 1 s for clock differences add up to {needs_s:g}; shorten them",
        )
    _check_extender(config.extender, where)
    _check_interference(config.interference, where)
    for number, key in enumerate(config.usage.labels):
        if not _LABEL_KEY.fullmatch(key):
            at = place(where, f"usage.labels[{number}]")
            raise BadInputError(at, f"{key!r} is not the key of a label; write one such as team")


def _check_interference(interference: InterferenceSettings, where: str) -> None:
    if interference.table and interference.model:
        what = "cannot be set together with interference.table; remove one of the two"
        raise BadInputError(place(where, "interference.model"), what)
    for field, name in (
        ("progressMetric", interference.progress_metric),
        ("latencyMetric", interference.latency_metric),
    ):
        if name and not _METRIC.fullmatch(name):
            what = f"{name!r} is not a metric name; write letters, digits, _ and :"
            raise BadInputError(place(where, f"interference.{field}"), what)
    if interference.latency_metric and interference.latency_metric == interference.progress_metric:
        at = place(where, "interference.latencyMetric")
        raise BadInputError(
            at, "is progressMetric too; name a gauge, as progressMetric is a counter"
        )


def _check_extender(extender: ExtenderSettings, where: str) -> None:
    for path, policy in extender.routes.items():
        at = place(where, f"extender.routes[{path}]")
        if not _ROUTE.fullmatch(path):
            raise BadInputError(at, f"{path!r} is not a path; write one such as /weft")
        if not policy:
            raise BadInputError(at, f"is empty; write a policy, {BY_SCHEDULER_NAME} or {BY_AUTO}")
    if not extender.routes:
        raise BadInputError(place(where, "extender.routes"), "is empty; name at least one path")
    if bool(extender.certificate_file) != bool(extender.key_file):
        at = place(where, "extender.certificateFile")
        raise BadInputError(at, "belongs together with extender.keyFile; write both")
    if extender.client_authority_file and not extender.certificate_file:
        at = place(where, "extender.clientAuthorityFile")
        raise BadInputError(at, "needs a certificate of Weft's own: extender.certificateFile")


def _check_files(config: Configuration, where: str) -> None:
    """Check that the named files exist and are readable; the code that uses them checks their
    contents."""
    extender = config.extender
    for field, name, kind in (
        ("extender.certificateFile", extender.certificate_file, "a PEM file"),
        ("extender.keyFile", extender.key_file, "a PEM file"),
        ("extender.clientAuthorityFile", extender.client_authority_file, "a PEM file"),
        *telemetry_files(config.telemetry),
        ("interference.profiles", config.interference.profiles, "a file of profiles"),
        ("interference.mystic", config.interference.mystic, "a table of distances"),
    ):
        if name:
            try:
                with Path(name).open("rb"):
                    pass
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                why = error.strerror if isinstance(error, OSError) else error
                at = place(where, field)
                raise BadInputError(at, f"{name} cannot be read: {why}; name {kind}") from error


# --- telemetry ------------------------------------------------------------------------------------
# Checks the section `telemetry` beyond types and bounds: addresses, files, names.


MOST_SAMPLES = 240
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OF_CONNECTION = re.compile(
    "connection|content-(encoding|length)|expect|host|keep-alive|te|trailer|transfer-encoding|upgrade"
    "|proxy-(authenticate|authorization|connection)"
)
_MATCHER = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(\\.|[^"\\\n])*"\s*'
_SELECTOR = re.compile(f"{_MATCHER}(,{_MATCHER})*")
_LABEL = r"([A-Za-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_LABELS = re.compile(
    f"!?{_LABEL}((=|==|!=)[A-Za-z0-9._-]*)?(,!?{_LABEL}((=|==|!=)[A-Za-z0-9._-]*)?)*"
)


def check_telemetry(telemetry: TelemetrySettings) -> None:
    """Check the section `telemetry`; `BadInputError` names the field."""
    _check_times(telemetry)
    _check_sources(telemetry)
    _check_access(telemetry)
    if telemetry.selector and not _SELECTOR.fullmatch(telemetry.selector):
        what = f'{telemetry.selector!r} is not a selector; write matchers, such as cluster="a"'
        raise _bad("selector", what)
    for i, own in enumerate(telemetry.names):
        if not _METRIC_NAME.fullmatch(own.name):
            raise _bad(f"names[{i}].name", f"{own.name!r} is not a metric name")
        if own.metric not in list(Metric):
            raise _bad(f"names[{i}].metric", unknown(own.metric, Metric))
        if own.name in {earlier.name for earlier in telemetry.names[:i]}:
            raise _bad(
                f"names[{i}].name",
                f"{own.name!r} has an entry in names already; keep one of the two",
            )


def telemetry_files(telemetry: TelemetrySettings) -> Iterator[tuple[str, str, str]]:
    """Yield (field, file name or "", description) of every file that the section may name."""
    for field, name, kind in (
        ("passwordFile", telemetry.password_file, "a file with a password"),
        ("bearerTokenFile", telemetry.bearer_token_file, "a file with a token"),
        ("authorityFile", telemetry.authority_file, "a PEM file"),
        ("certificateFile", telemetry.certificate_file, "a PEM file"),
        ("keyFile", telemetry.key_file, "a PEM file"),
    ):
        yield f"telemetry.{field}", name, kind


def _check_times(telemetry: TelemetrySettings) -> None:
    if telemetry.window_seconds < 2 * telemetry.interval_seconds:
        what = f"{telemetry.window_seconds:g} is less than twice intervalSeconds"
        raise _bad("windowSeconds", what)
    if telemetry.window_seconds > MOST_SAMPLES * telemetry.interval_seconds:
        what = f"{telemetry.window_seconds:g} is more than {MOST_SAMPLES} times intervalSeconds"
        raise _bad("windowSeconds", what)
    if telemetry.horizon_seconds > telemetry.window_seconds:
        raise _bad("horizonSeconds", f"{telemetry.horizon_seconds:g} is more than windowSeconds")


def _check_sources(telemetry: TelemetrySettings) -> None:
    named = [field for field in ("url", "exporters", "discover") if getattr(telemetry, field)]
    if len(named) > 1:
        raise _bad(named[1], f"cannot be set together with {named[0]}; keep one of the two")
    if telemetry.url:
        check_url(telemetry.url, "telemetry.url")
    if telemetry.exporters:
        if "{address}" not in telemetry.exporters and "{node}" not in telemetry.exporters:
            same = f"{shown_url(telemetry.exporters)!r} is the same for every node"
            raise _bad("exporters", f"{same}; put {{address}} or {{node}} into it")
        page = telemetry.exporters.replace("{address}", "127.0.0.1").replace("{node}", "node")
        try:
            check_url(page, "telemetry.exporters")
        except BadInputError:
            page = shown_url(telemetry.exporters)
            what = f"{page!r} is not a page's URL; write http://{{address}}:9400/metrics"
            raise _bad("exporters", what) from None
    for i, namespace in enumerate(telemetry.namespaces):
        if not is_label(namespace):
            what = f"{namespace!r} is not a namespace; write lower-case letters, digits and -"
            raise _bad(f"namespaces[{i}]", what)
    if telemetry.discover == "exporters" and not telemetry.exporter_selectors:
        raise _bad("exporterSelectors", "is empty; name at least one label selector")
    for i, selector in enumerate(telemetry.exporter_selectors):
        if not _LABELS.fullmatch(selector):
            what = f"{selector!r} is not a label selector; write one such as app=dcgm-exporter"
            raise _bad(f"exporterSelectors[{i}]", what)


def _check_access(telemetry: TelemetrySettings) -> None:
    if telemetry.username and telemetry.bearer_token_file:
        raise _bad("username", "cannot be set together with bearerTokenFile; keep one of the two")
    for field, other, first, second in (
        ("username", "passwordFile", telemetry.username, telemetry.password_file),
        ("certificateFile", "keyFile", telemetry.certificate_file, telemetry.key_file),
    ):
        if bool(first) != bool(second):
            has, lacks = (field, other) if first else (other, field)
            raise _bad(has, f"belongs together with {lacks}; write both")
    if not telemetry.verify and telemetry.authority_file:
        raise _bad("verify", "false contradicts authorityFile; keep one of the two")
    plain = urlsplit(telemetry.url or telemetry.exporters).scheme == "http"
    for field, name in (
        ("authorityFile", telemetry.authority_file),
        ("certificateFile", telemetry.certificate_file),
    ):
        if name and plain:
            raise _bad(
                field, "has no effect for an http:// address; write https:// or leave it out"
            )
    for name, text in telemetry.headers.items():
        at = f"headers[{name}]"
        if not _HEADER.fullmatch(name) or not (text.isascii() and text.isprintable()):
            raise _bad(at, "is not an HTTP header; write printable ASCII on one line")
        if _OF_CONNECTION.fullmatch(name.lower()):
            raise _bad(at, "is set by the connection itself; leave it out")
        if name.lower() == "authorization":
            what = "would put a secret into this file; write username or bearerTokenFile"
            raise _bad(at, what)
    secret = telemetry.username or telemetry.bearer_token_file or telemetry.headers
    if telemetry.discover and secret and not telemetry.namespaces:
        what = "is empty: anyone who may create a pod could get the credentials; name namespaces"
        raise _bad("namespaces", what)


def _bad(field: str, what: str) -> BadInputError:
    return BadInputError(f"telemetry.{field}", what)
