"""A stand-in for msgspec where it is missing and nothing can be installed: a GPU machine offline.

It does what measuring uses of msgspec, by the standard library, slowly: structs, and JSON of them.
Only `gpu_measure` puts it in msgspec's place; Weft itself always runs with msgspec.
"""

import copy
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, dataclass_transform

_REQUIRED: Any = object()
_SIMPLE: Mapping[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
}


class UnsetType:
    """The value of a field that is not there at all."""


UNSET = UnsetType()


class DecodeError(Exception):
    """Not JSON, or not of that type."""


class Default(NamedTuple):
    """The result of `field`: a default, or who makes it; and another name in JSON."""

    default: Any = _REQUIRED
    default_factory: Any = _REQUIRED
    name: str = ""


def field(*, default: Any = _REQUIRED, default_factory: Any = _REQUIRED, name: str = "") -> Any:
    """A field's default."""
    return Default(default, default_factory, name)


@dataclass_transform(field_specifiers=(field,))
class _StructMeta(type):
    """Knows the fields of a struct, their defaults, and the options of its class line."""

    fields: dict[str, Default]
    options: dict[str, Any]

    def __new__(
        cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any
    ) -> "_StructMeta":
        made = super().__new__(cls, name, bases, space)
        made.fields, made.options = {}, {}
        for base in bases:
            made.fields |= getattr(base, "fields", {})
            made.options |= getattr(base, "options", {})
        made.options |= options
        for key in inspect.get_annotations(made):
            default = space.get(key, _REQUIRED)
            made.fields[key] = default if isinstance(default, Default) else Default(default)
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, space)


class Struct(metaclass=_StructMeta):
    """Fields by annotation, as msgspec's."""

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = type(self).fields
        if len(values) > len(fields) or (more := named.keys() - fields):
            raise TypeError(f"{type(self).__name__} has no {more if values else values}")
        given = dict(zip(fields, values, strict=False)) | named
        for key, default in fields.items():
            if key in given:
                value = given[key]
            elif default.default_factory is not _REQUIRED:
                value = default.default_factory()
            elif default.default is not _REQUIRED:
                value = copy.copy(default.default)
            else:
                raise TypeError(f"{type(self).__name__} lacks {key!r}")
            object.__setattr__(self, key, value)
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    def __setattr__(self, key: str, value: Any) -> None:
        if type(self).options.get("frozen"):
            raise AttributeError(f"immutable type: {type(self).__name__!r}")
        object.__setattr__(self, key, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(tuple(_values(self).values()))

    def __repr__(self) -> str:
        told = ", ".join(f"{key}={value!r}" for key, value in _values(self).items())
        return f"{type(self).__name__}({told})"


def _values(struct: Any) -> dict[str, Any]:
    return {key: getattr(struct, key) for key in type(struct).fields}


def replace(struct: Any, /, **changes: Any) -> Any:
    """The same struct but for these fields."""
    return type(struct)(**{**_values(struct), **changes})


def _name(kind: _StructMeta, key: str) -> str:
    """A field's name in JSON."""
    if kind.fields[key].name:
        return kind.fields[key].name
    rename = kind.options.get("rename")
    if isinstance(rename, Mapping):
        return str(rename.get(key, key))
    if rename == "camel":
        first, *rest = key.split("_")
        return first + "".join(part.capitalize() for part in rest)
    return key


def _plain(value: Any) -> Any:
    """Turns it into values that JSON has."""
    if isinstance(value, Struct):
        return dict(_items(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _items(struct: Struct) -> Iterator[tuple[str, Any]]:
    kind = type(struct)
    if "tag" in kind.options:
        yield "type", kind.options["tag"]
    for key, default in kind.fields.items():
        value = getattr(struct, key)
        if not (kind.options.get("omit_defaults") and value == default.default):
            yield _name(kind, key), _plain(value)


def encode(value: Any) -> bytes:
    """As JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()


def format_(body: bytes, *, indent: int = 2) -> bytes:
    """The same JSON for people."""
    return json.dumps(json.loads(body), ensure_ascii=False, indent=indent).encode()


def decode(body: bytes | str, *, type: Any = Any) -> Any:  # noqa: A002 - msgspec's name of it
    """Decodes JSON; `DecodeError` where it is none, or not of that type."""
    try:
        return _typed(json.loads(body), type)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DecodeError(str(error) or "of another type") from error


class Decoder:
    """`decode` of one type."""

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - msgspec's name of it
        self._type = type

    def __class_getitem__(cls, _: Any) -> type:
        return cls

    def decode(self, body: bytes | str) -> Any:
        """See the function."""
        return decode(body, type=self._type)


def _typed(told: Any, kind: Any) -> Any:
    """`told`, which JSON gave, as a value of that type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return told
    if origin in (typing.Union, types.UnionType):
        return _one_of(told, inner)
    if origin is dict:
        return {key: _typed(one, inner[1]) for key, one in told.items()}
    if origin in (list, tuple):
        return origin(_typed(one, inner[0]) for one in told)
    if isinstance(kind, _StructMeta):
        return _struct(told, kind)
    if kind in _SIMPLE and (
        not isinstance(told, _SIMPLE[kind]) or (isinstance(told, bool) and kind is not bool)
    ):
        raise DecodeError(f"expected {kind.__name__}, got {told!r}")
    return float(told) if kind is float else told


def _one_of(told: Any, kinds: tuple[Any, ...]) -> Any:
    if told is None and type(None) in kinds:
        return None
    left = [kind for kind in kinds if kind is not type(None)]
    tagged = [kind for kind in left if isinstance(kind, _StructMeta) and "tag" in kind.options]
    if tagged:
        left = [kind for kind in tagged if kind.options["tag"] == told["type"]]
    for kind in left:
        try:
            return _typed(told, kind)
        except DecodeError:
            if kind is left[-1]:
                raise
    raise DecodeError(f"{told!r} is none of {kinds}")


def _struct(told: Mapping[str, Any], kind: _StructMeta) -> Any:
    hints = typing.get_type_hints(kind)
    names = {_name(kind, key): key for key in kind.fields}
    unknown = told.keys() - names - ({"type"} if "tag" in kind.options else set())
    if unknown and kind.options.get("forbid_unknown_fields"):
        raise DecodeError(f"has an unknown field {min(unknown)!r}")
    return kind(
        **{key: _typed(told[name], hints[key]) for name, key in names.items() if name in told}
    )


def stand_in() -> None:
    """Be msgspec from here on, for whoever imports it."""
    modules: dict[str, dict[str, Callable[..., Any] | type | UnsetType]] = {
        "msgspec": {
            "Struct": Struct,
            "field": field,
            "DecodeError": DecodeError,
            "ValidationError": DecodeError,
            "UNSET": UNSET,
            "UnsetType": UnsetType,
        },
        "msgspec.json": {"encode": encode, "decode": decode, "format": format_, "Decoder": Decoder},
        "msgspec.structs": {"replace": replace},
    }
    for name, members in modules.items():
        module = types.ModuleType(name, __doc__)
        vars(module).update(members)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
