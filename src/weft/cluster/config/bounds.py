"""Validates the file's numbers, names and addresses against each other and their bounds."""

from typing import Any

import msgspec

from weft.cluster.config.addresses import EVERYWHERE, is_host, is_label, is_subdomain
from weft.cluster.config.form import Configuration, ExtenderSettings
from weft.cluster.config.gpu_links import links_rules
from weft.cluster.http.access import is_loopback
from weft.files.form import read_form
from weft.files.queue_settings import check_queues
from weft.model import BadInputError
from weft.model.former_names import todays_fields

_ORIGINAL_PORTS = (39_999, 12_345)


FORMER_NAMES = {"lessons": "oomHistory"}
"""Names that settings had in Weft 0.1, with their current names."""


def from_builtins(document: Any) -> Configuration:
    """Convert a decoded file to a configuration, with each setting within its bounds.

    `lessons` is accepted as Weft 0.1's name of `oomHistory`."""
    if isinstance(document, dict) and "lessons" in document:
        if "oomHistory" in document:
            raise BadInputError(
                "lessons", "is the former name of oomHistory, which is set too; remove lessons"
            )
        document = todays_fields(document, FORMER_NAMES)
    return read_form(document, Configuration)


def check_again(config: Configuration) -> None:
    """Check settings that were changed after the file was read."""
    from_builtins(msgspec.to_builtins(config))
    check_bounds(config)


def check_bounds(config: Configuration) -> None:
    """Check settings against each other; `BadInputError` names the field."""
    stable, window = config.limits.stable_seconds, config.telemetry.window_seconds
    if stable > window:
        what = f"{stable:,} is more than telemetry.windowSeconds, {window:,}; write at most that"
        raise BadInputError("limits.stableSeconds", what)
    links_rules(config.gpu_links)
    check_queues(config.queues)
    _check_names(config)
    _check_ports(config)
    _check_door(config.extender)


def _check_names(config: Configuration) -> None:
    lease = config.lease
    if not is_subdomain(lease.name):
        what = (
            f"{lease.name!r} is not a valid Lease name; write lower-case letters, digits, - and ."
        )
        raise BadInputError("lease.name", what)
    if not is_label(lease.namespace):
        what = (
            f"{lease.namespace!r} is not a valid namespace; write lower-case letters, digits and -"
        )
        raise BadInputError("lease.namespace", what)
    config_maps = (
        ("oomHistory.name", config.oom_history.name),
        ("interference.observed", config.interference.observed),
    )
    for field, name in config_maps:
        if name and not is_subdomain(name):
            what = (
                f"{name!r} is not a valid ConfigMap name; write lower-case letters, digits, - and ."
            )
            raise BadInputError(field, what)
    if config.oom_history.name and config.oom_history.name == config.interference.observed:
        raise BadInputError("interference.observed", "is also oomHistory.name; use another name")
    for section, address in (("http", config.http.address), ("extender", config.extender.address)):
        if not is_host(address):
            what = f"{address!r} is not an IP address or host name; write 0.0.0.0 for all addresses"
            raise BadInputError(f"{section}.address", what)


def _check_ports(config: Configuration) -> None:
    """Check that the process's two servers have different ports; 0 picks a free one."""
    http, extender = config.http, config.extender
    apart = http.address != extender.address and not {http.address, extender.address} & {
        *EVERYWHERE
    }
    if not extender.enabled or not http.port or apart:
        return
    if http.port == extender.port:
        what = f"{http.port} is extender.port too; change one of the two"
        raise BadInputError("http.port", what)
    if extender.original_ports and http.port in _ORIGINAL_PORTS:
        what = f"{http.port} is one of the ports that extender.originalPorts opens; write another"
        raise BadInputError("http.port", what)


def _check_door(extender: ExtenderSettings) -> None:
    """Check that a remotely reachable extender verifies its clients, as they may bind any pod,
    unless `anyone_may_bind` is set."""
    if not extender.enabled or is_loopback(extender.address):
        return
    if not (extender.client_authority_file or extender.anyone_may_bind):
        what = (
            f"{extender.address} lets anyone who reaches it bind any pod; write certificateFile, "
            "keyFile and clientAuthorityFile, or 127.0.0.1 if kube-scheduler is on the same "
            "machine, or anyoneMayBind: true if everyone on that network may"
        )
        raise BadInputError("extender.address", what)
