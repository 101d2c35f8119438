"""Bounds of the file's numbers, names and addresses, and what is said of a setting beyond them."""

from typing import Any

import msgspec

from weft.cluster.config.addresses import EVERYWHERE, is_host, is_label, is_subdomain
from weft.cluster.config.form import Configuration, ExtenderSettings
from weft.cluster.config.gpu_links import links_rules
from weft.cluster.http.access import is_loopback
from weft.files.form import read_form
from weft.model import BadInputError
from weft.model.former_names import todays_fields

_ORIGINAL_PORTS = (39_999, 12_345)


FORMER_NAMES = {"lessons": "oomHistory"}
"""Settings of Weft 0.1, and their names today."""


def from_builtins(document: Any) -> Configuration:
    """The configuration that a file says, each setting within its bound.

    `lessons` is what Weft 0.1 called `oomHistory`.
    """
    if isinstance(document, dict) and "lessons" in document:
        if "oomHistory" in document:
            raise BadInputError("lessons", "is called oomHistory now, which is there too; drop it")
        document = todays_fields(document, FORMER_NAMES)
    return read_form(document, Configuration)


def check_again(config: Configuration) -> None:
    """Checks settings that were changed since they were read."""
    from_builtins(msgspec.to_builtins(config))
    check_bounds(config)


def check_bounds(config: Configuration) -> None:
    """Checks settings against each other; `BadInputError` with the field as its place."""
    stable, window = config.limits.stable_seconds, config.telemetry.window_seconds
    if stable > window:
        what = f"{stable:,} is more than {window:,}; write that at most"
        raise BadInputError("limits.stableSeconds", what)
    links_rules(config.gpu_links)
    _check_names(config)
    _check_ports(config)
    _check_door(config.extender)


def _check_names(config: Configuration) -> None:
    lease = config.lease
    if not is_subdomain(lease.name):
        what = f"{lease.name!r} is no name of a Lease; write lower-case letters, digits, - and ."
        raise BadInputError("lease.name", what)
    if not is_label(lease.namespace):
        what = f"{lease.namespace!r} is no namespace; write lower-case letters, digits and -"
        raise BadInputError("lease.namespace", what)
    config_maps = (
        ("oomHistory.name", config.oom_history.name),
        ("interference.observed", config.interference.observed),
    )
    for field, name in config_maps:
        if name and not is_subdomain(name):
            what = f"{name!r} is no name of a ConfigMap; write lower-case letters, digits, - and ."
            raise BadInputError(field, what)
    if config.oom_history.name and config.oom_history.name == config.interference.observed:
        raise BadInputError("interference.observed", "is oomHistory.name too; give it another name")
    for section, address in (("http", config.http.address), ("extender", config.extender.address)):
        if not is_host(address):
            what = f"{address!r} is no IP address or host name; write 0.0.0.0 for all addresses"
            raise BadInputError(f"{section}.address", what)


def _check_ports(config: Configuration) -> None:
    """The two servers of one process need ports of their own; 0 is always a free one."""
    http, extender = config.http, config.extender
    apart = http.address != extender.address and not {http.address, extender.address} & {
        *EVERYWHERE
    }
    if not extender.enabled or not http.port or apart:
        return
    if http.port == extender.port:
        what = f"{http.port} is extender.port too; give one of them another"
        raise BadInputError("http.port", what)
    if extender.original_ports and http.port in _ORIGINAL_PORTS:
        what = f"{http.port} is one of extender.originalPorts'; write another"
        raise BadInputError("http.port", what)


def _check_door(extender: ExtenderSettings) -> None:
    """Whoever is let in binds pods, of every namespace: other machines only by certificate."""
    if not extender.enabled or is_loopback(extender.address):
        return
    if not (extender.client_authority_file or extender.anyone_may_bind):
        what = (
            f"{extender.address} lets whoever reaches it bind any pod; write certificateFile, "
            "keyFile and clientAuthorityFile, or 127.0.0.1 where kube-scheduler is on the same "
            "machine, or anyoneMayBind: true where everybody on that network may"
        )
        raise BadInputError("extender.address", what)
