"""Reads a configuration file; errors name the file, the field and the fix.

This module imports no decision code, because the node's agent reads the same file."""

import re
from pathlib import Path

from weft.cluster.config.bounds import check_bounds, from_builtins
from weft.cluster.config.form import (
    API_VERSION,
    BY_AUTO,
    BY_SCHEDULER_NAME,
    KIND,
    Configuration,
    ExtenderSettings,
    InterferenceSettings,
)
from weft.cluster.config.telemetry import check_telemetry, telemetry_files
from weft.files.form import place, read_document
from weft.files.reading import read_bytes
from weft.model import BadInputError

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
    empty = "is empty; write apiVersion: weft.dev/v1 and what differs"
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
            raise BadInputError(place(where, f"{at}.policies"), "is empty; name at least one")


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
            f"lease.renewSeconds and 1 s for clocks make {needs_s:g}; shorten one of them",
        )
    _check_extender(config.extender, where)
    _check_interference(config.interference, where)
    for number, key in enumerate(config.usage.labels):
        if not _LABEL_KEY.fullmatch(key):
            at = place(where, f"usage.labels[{number}]")
            raise BadInputError(at, f"{key!r} is not the key of a label; write one such as team")


def _check_interference(interference: InterferenceSettings, where: str) -> None:
    if interference.table and interference.model:
        raise BadInputError(place(where, "interference.model"), "and table exclude each other")
    for field, name in (
        ("progressMetric", interference.progress_metric),
        ("latencyMetric", interference.latency_metric),
    ):
        if name and not _METRIC.fullmatch(name):
            what = f"{name!r} is not a metric name; write letters, digits, _ and :"
            raise BadInputError(place(where, f"interference.{field}"), what)
    if interference.latency_metric and interference.latency_metric == interference.progress_metric:
        at = place(where, "interference.latencyMetric")
        raise BadInputError(at, "is progressMetric too; one counts, the other is a gauge")


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
