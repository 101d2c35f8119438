"""Bounds of the file's numbers, names and addresses, and what is said of a setting beyond them."""

import math
import re
from typing import Any

import msgspec

from weft.cluster.config.addresses import EVERYWHERE, is_host, is_label, is_subdomain
from weft.cluster.config.form import Configuration, ExtenderSettings
from weft.cluster.http.access import is_loopback
from weft.model import BadInputError

_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_BEYOND = re.compile(r"Expected `\w+` [<>]")
_NUMBERS = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_ORIGINAL_PORTS = (39_999, 12_345)


def from_builtins(told: Any) -> Configuration:
    """The configuration that a file says, each setting within its bound."""
    try:
        return msgspec.convert(told, Configuration)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        what, at = (match[1], match[2] or "") if match else (str(error), "")
        raise BadInputError(at, _in_words(what, at, told)) from error


def check_again(found: Configuration) -> None:
    """Checks settings that were changed since they were read."""
    from_builtins(msgspec.to_builtins(found))
    check_bounds(found)


def _in_words(what: str, at: str, told: Any) -> str:
    """What msgspec says, with the value and what may stand there."""
    kind: Any = msgspec.inspect.type_info(Configuration)
    words: dict[str, str] = {}
    for name, index in _STEP.findall(at):
        if isinstance(kind, msgspec.inspect.StructType):
            fields = {field.encode_name: field.type for field in kind.fields}
            kind, told = fields[name], told.get(name)
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            kind, told = kind.item_type, told[int(index)]
        if isinstance(kind, msgspec.inspect.Metadata):
            kind, words = kind.type, kind.extra or {}
    if isinstance(kind, msgspec.inspect.LiteralType) and what.startswith("Invalid enum value"):
        return f"{what}; write one of {', '.join(repr(value) for value in kind.values)}"
    if isinstance(kind, _NUMBERS) and _BEYOND.match(what):
        value = float(told) if isinstance(kind, msgspec.inspect.FloatType) else told
        return _out_of_bounds(kind, value, words)
    return what


def _out_of_bounds(kind: Any, value: float, words: dict[str, str]) -> str:
    if "refused" in words:
        return words["refused"].format(value)
    if not math.isfinite(value):
        return f"{value} is no finite number; write one"
    if kind.le is not None and value > kind.le:
        above = words.get("above", f"{{:,}} is more than {kind.le:,}; write that at most")
        return above.format(value)
    if kind.ge == 0:
        return f"{value:,} is negative; write 0 or more"
    least = f"more than {kind.gt:,}" if kind.gt is not None else f"{kind.ge:,} or more"
    return f"{value:,} must be {least}"


def check_bounds(found: Configuration) -> None:
    """What is right only beside other settings; `BadInputError` with the field as its place."""
    stable, window = found.limits.stable_seconds, found.telemetry.window_seconds
    if stable > window:
        what = f"{stable:,} is more than {window:,}; write that at most"
        raise BadInputError("limits.stableSeconds", what)
    _check_names(found)
    _check_ports(found)
    _check_door(found.extender)


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
