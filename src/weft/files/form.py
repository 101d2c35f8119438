"""Strict schemas of Weft's files: errors name the field, its value and what is allowed."""

import math
import re
from typing import Any, TypeVar

import msgspec

from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError
from weft.model.nearest import nearest, unknown

_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_BEYOND = re.compile(r"Expected `\w+` [<>]")
_NUMBERS = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MOST_SHOWN = 100

Form = TypeVar("Form")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of forms: snake_case here, camelCase in the file; unknown fields are errors."""


def read_document(
    text: str | bytes, where: str, api_version: str, kind: str, *, empty: str
) -> dict[Any, Any]:
    """Parse a YAML document of this version and kind; `where` names the file in errors.

    `empty` is the error for a file that holds no document. `BadInputError` for anything else wrong.
    """
    try:
        document = load(text)
    except BrokenYamlError as error:
        at = "" if error.line is None else f"line {error.line + 1}"
        raise BadInputError(place(where, at), f"is not YAML: {error}") from None
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from None
    if not isinstance(document, dict):
        raise BadInputError(where, empty)
    for field, wanted in (("apiVersion", api_version), ("kind", kind)):
        if document.get(field) != wanted:
            what = f"{document.get(field)!r} is unknown; write {wanted}"
            raise BadInputError(place(where, field), what)
    return document


def place(where: str, field: str) -> str:
    """Join file and field, as errors name them."""
    return ": ".join(filter(None, (where, field)))


def read_form(document: Any, form: type[Form]) -> Form:
    """Convert a parsed document to `form`, checking each field's bounds.

    `BadInputError` names the field. A field can bring its own error text in
    `msgspec.Meta(extra={"refused": …})`, or "above" for too large a value, where {} is replaced by
    the value.
    """
    try:
        return msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        what, at = (match[1], match[2] or "") if match else (str(error), "")
        raise BadInputError(at, _in_words(what, at, document, form)) from error


def _in_words(what: str, at: str, value: Any, form: Any) -> str:
    """Complete msgspec's error with the value and with what is allowed."""
    kind: Any = msgspec.inspect.type_info(form)
    words: dict[str, str] = {}
    for name, index in _STEP.findall(at):
        kind = _member(kind, value)
        if isinstance(kind, msgspec.inspect.StructType):
            fields = {field.encode_name: field.type for field in kind.fields}
            kind, value = fields[name], value.get(name)
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            kind, value = kind.item_type, value[int(index)]
        if isinstance(kind, msgspec.inspect.Metadata):
            kind, words = kind.type, kind.extra or {}
    kind = _member(kind, value)
    if isinstance(kind, msgspec.inspect.UnionType) and what.startswith("Invalid value"):
        structs = [each for each in kind.types if isinstance(each, msgspec.inspect.StructType)]
        tag = value.get(structs[0].tag_field)
        return unknown(str(tag), [str(each.tag) for each in structs])
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
    if isinstance(kind, msgspec.inspect.StrType) and "refused" in words:
        return words["refused"].format(repr(value))
    is_scalar = isinstance(value, str | int | float)
    return f"{repr(value)[:_MOST_SHOWN]}: {what}" if is_scalar else what


def _member(kind: Any, value: Any) -> Any:
    """Return the struct that the value's tag names, if `kind` is a tagged union; otherwise
    `kind`."""
    if isinstance(kind, msgspec.inspect.UnionType) and isinstance(value, dict):
        for member in kind.types:
            if isinstance(member, msgspec.inspect.StructType) and (
                value.get(member.tag_field) == member.tag
            ):
                return member
    return kind


def _out_of_bounds(kind: Any, value: float, words: dict[str, str]) -> str:
    if "refused" in words:
        return words["refused"].format(value)
    if not math.isfinite(value):
        return f"{value} is not a finite number"
    if kind.le is not None and value > kind.le:
        above = words.get("above", f"{{:,}} is more than {kind.le:,}; write {kind.le:,} or less")
        return above.format(value)
    if kind.ge == 0:
        return f"{value:,} is negative; write 0 or more"
    least = f"more than {kind.gt:,}" if kind.gt is not None else f"{kind.ge:,} or more"
    return f"{value:,} must be {least}"
