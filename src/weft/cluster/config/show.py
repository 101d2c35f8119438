"""The configuration for people: all defaults as a file, each setting with its reason."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec

from weft.cluster.config.form import Configuration
from weft.files.form import Section
from weft.model import BadInputError
from weft.model.nearest import nearest, unknown


def _reasons(form: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(path, reason) of every setting of this form."""
    for field in msgspec.structs.fields(form):
        kind, path = field.type, prefix + field.encode_name
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            yield from ((path, reason) for reason in metadata if isinstance(reason, str))
        if get_origin(kind) is tuple:
            kind, path = get_args(kind)[0], f"{path}[]"
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _reasons(kind, f"{path}.")


REASONS = dict(_reasons(Configuration))


def as_yaml(config: Configuration) -> str:
    """The whole configuration as a file that means the same."""
    lines: list[str] = []
    for field, value in msgspec.to_builtins(config).items():
        lines.append(f"# {REASONS[field]}" if field in REASONS else "")
        if isinstance(value, dict):
            lines.append(f"{field}:")
            for name, inner in value.items():
                lines += [f"  # {REASONS[f'{field}.{name}']}", f"  {name}: {_flow(inner)}"]
        elif isinstance(value, list) and value:
            lines += [f"{field}:", *(f"- {_flow(item)}" for item in value)]
        else:
            lines.append(f"{field}: {_flow(value)}")
    return "\n".join(line for line in lines if line) + "\n"


def settings() -> list[tuple[str, str, str]]:
    """(path, default, reason) of every setting."""
    builtins = msgspec.to_builtins(Configuration())
    return [(path, _default(builtins, path), reason) for path, reason in REASONS.items()]


def explain(path: str) -> list[tuple[str, str, str]]:
    """The settings at and below this path; `BadInputError` where there is none."""
    below = [setting for setting in settings() if not path or _below(setting[0], path)]
    if not below:
        raise BadInputError("setting", _unknown(path))
    return below


def _unknown(path: str) -> str:
    """The nearest whole path; else the nearest last word, wherever it is."""
    near = nearest(path, REASONS)
    words = {name.rpartition(".")[2]: name for name in reversed(REASONS)}
    word = nearest(path.rpartition(".")[2], words)
    if near or not word:
        return unknown(path, REASONS)
    return f"{path!r} is unknown; did you mean {words[word]!r}?"


def _below(path: str, asked: str) -> bool:
    return path == asked or path.startswith((f"{asked}.", f"{asked}["))


def _default(builtins: Any, path: str) -> str:
    """The default of a setting; those within lists and long lists have none to show."""
    if "[" in path:
        return ""
    for part in path.split("."):
        builtins = builtins[part]
    text = _flow(builtins)
    return text if len(text) < 40 else ""


def _flow(value: Any) -> str:
    """JSON, which is YAML on one line."""
    return msgspec.json.encode(value).decode()
