"""What the numbers, names and addresses of the file may be; what the types cannot say."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from weft.cluster.config.addresses import EVERYWHERE, is_host, is_label, is_subdomain
from weft.cluster.config.form import Configuration, ExtenderSettings
from weft.cluster.http.access import is_loopback
from weft.model import BadInputError
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS

MOST_WEIGHT = 1_000_000
"""Scores of 0 to 100 times this, of as many policies as there may be, add up within 64 bits."""

_DAY_S = 86_400
_LARGEST = 2**63 - 1
_ORIGINAL_PORTS = (39_999, 12_345)


class Limit(NamedTuple):
    """A setting's value and what it may be; `above` instead of `least` where 0 itself is wrong."""

    field: str
    value: float
    least: float
    most: float
    above: bool = False


def check_bounds(found: Configuration) -> None:
    """`BadInputError` with the field as its place."""
    for one in _bounds(found):
        too_small = one.value <= one.least if one.above else one.value < one.least
        if math.isnan(one.value) or math.isinf(one.value):
            raise BadInputError(one.field, f"{one.value} is no finite number; write one")
        shown = f"{one.value:,}"
        if too_small and one.least == 0 and not one.above:
            raise BadInputError(one.field, f"{shown} is negative; write 0 or more")
        if too_small:
            least = f"more than {one.least:,}" if one.above else f"{one.least:,} or more"
            raise BadInputError(one.field, f"{shown} must be {least}")
        if one.value > one.most:
            raise BadInputError(one.field, f"{shown} is more than {one.most:,}; write that at most")
    for field, port in (("http.port", found.http.port), ("extender.port", found.extender.port)):
        if not 0 <= port < 65_536:
            raise BadInputError(field, f"{port} is no port; write 1 to 65535, or 0 for a free one")
    _check_names(found)
    _check_ports(found)
    _check_door(found.extender)


def _bounds(found: Configuration) -> Iterator[Limit]:
    client, lease = found.client, found.lease
    yield Limit("client.qps", client.qps, 0, 1_000_000, above=True)
    yield Limit("client.burst", client.burst, 1, 1_000_000)
    yield Limit("client.bindsInFlight", client.binds_in_flight, 1, 10_000)
    yield Limit("client.requestTimeoutSeconds", client.request_timeout_seconds, 1, 3_600)
    yield Limit("lease.durationSeconds", lease.duration_seconds, 1, 10)
    yield Limit("lease.renewSeconds", lease.renew_seconds, 0, 10, above=True)
    warm_up, stable = found.limits.warm_up_seconds, found.limits.stable_seconds
    yield Limit("limits.warmUpSeconds", warm_up, 0, _DAY_S)
    yield Limit("limits.stableSeconds", stable, 0, found.telemetry.window_seconds, above=True)
    yield Limit("events.intervalSeconds", found.events.interval_seconds, 0, _DAY_S)
    yield Limit("interference.reloadSeconds", found.interference.reload_seconds, 0, _DAY_S)
    yield Limit("seed", found.seed, 0, _LARGEST)
    for i, profile in enumerate(found.profiles):
        for j, use in enumerate(profile.policies):
            yield Limit(f"profiles[{i}].policies[{j}].weight", use.weight, 0, MOST_WEIGHT)
    for i, rule in enumerate(found.inventory):
        yield Limit(f"inventory[{i}].count", rule.count, 1, MOST_GPUS)
        yield Limit(f"inventory[{i}].memoryMiB", rule.memory_mib, 1, MOST_GPU_MIB)


def _check_names(found: Configuration) -> None:
    lease = found.lease
    if not is_subdomain(lease.name):
        what = f"{lease.name!r} is no name of a Lease; write lower-case letters, digits, - and ."
        raise BadInputError("lease.name", what)
    if not is_label(lease.namespace):
        what = f"{lease.namespace!r} is no namespace; write lower-case letters, digits and -"
        raise BadInputError("lease.namespace", what)
    kept = (
        ("lessons.name", found.oom_history.name),
        ("interference.observed", found.interference.observed),
    )
    for field, name in kept:
        if name and not is_subdomain(name):
            what = f"{name!r} is no name of a ConfigMap; write lower-case letters, digits, - and ."
            raise BadInputError(field, what)
    if found.oom_history.name and found.oom_history.name == found.interference.observed:
        raise BadInputError("interference.observed", "is lessons.name too; give it another name")
    for section, address in (("http", found.http.address), ("extender", found.extender.address)):
        if not is_host(address):
            what = f"{address!r} is no IP address or host name; write 0.0.0.0 for all addresses"
            raise BadInputError(f"{section}.address", what)


def _check_ports(found: Configuration) -> None:
    """The two servers of one process need ports of their own; 0 is always a free one."""
    http, extender = found.http, found.extender
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


def _check_door(found: ExtenderSettings) -> None:
    """Whoever is let in binds pods, of every namespace: other machines only by certificate."""
    if not found.enabled or is_loopback(found.address):
        return
    if not (found.client_authority_file or found.anyone_may_bind):
        what = (
            f"{found.address} lets whoever reaches it bind any pod; write certificateFile, keyFile "
            "and clientAuthorityFile, or 127.0.0.1 where kube-scheduler is on the same machine, or "
            "anyoneMayBind: true where everybody on that network may"
        )
        raise BadInputError("extender.address", what)
