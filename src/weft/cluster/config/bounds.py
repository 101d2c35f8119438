"""Bounds of the file's numbers, names and addresses, and what is said of a setting beyond them."""

import math
import re
from typing import Any

import msgspec

from weft.cluster.config.addresses import EVERYWHERE, is_host, is_label, is_subdomain
from weft.cluster.config.form import Configuration, ExtenderSettings
from weft.cluster.config.gpu_links import links_rules
from weft.cluster.http.access import is_loopback
from weft.model import BadInputError
from weft.model.nearest import nearest

_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_BEYOND = re.compile(r"Expected `\w+` [<>]")
_NUMBERS = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_ORIGINAL_PORTS = (39_999, 12_345)


def from_builtins(document: Any) -> Configuration:
    """The configuration that a file says, each setting within its bound."""
    try:
        return msgspec.convert(document, Configuration)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        what, at = (match[1], match[2] or "") if match else (str(error), "")
        raise BadInputError(at, _in_words(what, at, document)) from error


def check_again(config: Configuration) -> None:
    """Checks settings that were changed since they were read."""
    from_builtins(msgspec.to_builtins(config))
    check_bounds(config)


def _in_words(what: str, at: str, value: Any) -> str:
    """msgspec's complaint, with the value and what may stand there."""
    kind: Any = msgspec.inspect.type_info(Configuration)
    words: dict[str, str] = {}
    for name, index in _STEP.findall(at):
        if isinstance(kind, msgspec.inspect.StructType):
            fields = {field.encode_name: field.type for field in kind.fields}
            kind, value = fields[name], value.get(name)
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            kind, value = kind.item_type, value[int(index)]
        if isinstance(kind, msgspec.inspect.Metadata):
            kind, words = kind.type, kind.extra or {}
    if isinstance(kind, msgspec.inspect.LiteralType) and what.startswith("Invalid enum value"):
        near = nearest(str(value), map(str, kind.values))
        hint = f"; did you mean {near!r}?" if near else ""
        return f"{what}{hint}; write one of {', '.join(repr(legal) for legal in kind.values)}"
    field = _UNKNOWN.fullmatch(what)
    if isinstance(kind, msgspec.inspect.StructType) and field:
        fields_here = [known.encode_name for known in kind.fields]
        near = nearest(field[1], fields_here)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(fields_here)}"
        return f"{what}; {hint}"
    if isinstance(kind, _NUMBERS) and _BEYOND.match(what):
        exact = float(value) if isinstance(kind, msgspec.inspect.FloatType) else value
        return _out_of_bounds(kind, exact, words)
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
    kept = (
        ("lessons.name", config.oom_history.name),
        ("interference.observed", config.interference.observed),
    )
    for field, name in kept:
        if name and not is_subdomain(name):
            what = f"{name!r} is no name of a ConfigMap; write lower-case letters, digits, - and ."
            raise BadInputError(field, what)
    if config.oom_history.name and config.oom_history.name == config.interference.observed:
        raise BadInputError("interference.observed", "is lessons.name too; give it another name")
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
