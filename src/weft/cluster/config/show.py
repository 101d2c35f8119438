"""Prints the configuration: all defaults as a file, and each setting with its reason."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

from weft.cluster.config.form import Configuration
from weft.files.form import Section
from weft.model import BadInputError
from weft.model.nearest import nearest, unknown


def _reasons(form: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of every setting of this form."""
    for field in msgspec.structs.fields(form):
        kind, path = field.type, prefix + field.encode_name
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            yield from ((path, reason) for reason in metadata if isinstance(reason, str))
        if get_origin(kind) is tuple:
            kind, path = get_args(kind)[0], f"{path}[]"
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _reasons(kind, f"{path}.")


_WIDTH = 90
REASONS = dict(_reasons(Configuration))


def as_yaml(config: Configuration) -> str:
    """Return the configuration as YAML, with each setting's reason at its first occurrence."""
    return "\n".join(_fields(msgspec.to_builtins(config), "", dict(REASONS))) + "\n"


def _fields(fields: dict[str, Any], path: str, reasons: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a mapping; remove each reason used from `reasons`."""
    for name, value in fields.items():
        reason = reasons.pop(f"{path}{name}", "")
        for line in textwrap.wrap(reason, _WIDTH, break_on_hyphens=False):
            yield f"# {line}"
        key = name if name.isidentifier() else _flow(name)
        if not (value and isinstance(value, dict | list | tuple)):
            yield f"{key}: {_flow(value)}"
            continue
        yield f"{key}:"
        if isinstance(value, dict):
            yield from (f"  {line}" for line in _fields(value, f"{path}{name}.", reasons))
        else:
            yield from _items(value, f"{path}{name}[].", reasons)


def _items(items: Iterable[Any], path: str, reasons: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a list; mappings in the list become blocks."""
    for item in items:
        lines = list(_fields(item, path, reasons)) if isinstance(item, dict) else [_flow(item)]
        first = next(at for at, line in enumerate(lines) if not line.startswith("#"))
        yield from (f"  {line}" for line in lines[:first])
        yield f"- {lines[first]}"
        yield from (f"  {line}" for line in lines[first + 1 :])


def settings() -> list[tuple[str, str, str]]:
    """Return (path, default, reason) of every setting."""
    builtins = msgspec.to_builtins(Configuration())
    return [(path, _default(builtins, path), reason) for path, reason in REASONS.items()]


def explain(path: str) -> list[tuple[str, str, str]]:
    """Return (path, default, reason) of the settings at and below this path; `BadInputError` if
    there is none."""
    below = [setting for setting in settings() if not path or _below(setting[0], path)]
    if not below:
        raise BadInputError("setting", _unknown(path))
    return below


def _unknown(path: str) -> str:
    """Return an error text that suggests the nearest path, or a path with the nearest last word."""
    near = nearest(path, REASONS)
    words = {name.rpartition(".")[2]: name for name in reversed(REASONS)}
    word = nearest(path.rpartition(".")[2], words)
    if near or not word:
        return unknown(path, REASONS)
    return f"{path!r} is unknown; did you mean {words[word]!r}?"


def _below(path: str, asked: str) -> bool:
    return path == asked or path.startswith((f"{asked}.", f"{asked}["))


def _default(builtins: Any, path: str) -> str:
    """Return a setting's default as text; "" for settings in lists and for long defaults."""
    if "[" in path:
        return ""
    for part in path.split("."):
        builtins = builtins[part]
    text = _flow(builtins)
    return text if len(text) < 40 else ""


def _flow(value: Any) -> str:
    """Return the value as JSON, which is YAML on one line."""
    return msgspec.json.encode(value).decode()
