"""Registry of policies by name: those that come with Weft, and those of plugins.

A policy class is its own factory: the parameters of its constructor are its options. Finding
installed plugins is I/O and not done here; `register_entry_points` takes the entry points found."""

import inspect
import math
import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from weft.core.framework.policy import Policy, PolicyOrigin
from weft.model import BadInputError
from weft.model.nearest import unknown

REQUIRED = inspect.Parameter.empty
"""Mark in place of a default, for an option that must be given."""


class EntryPoint(Protocol):
    """The part of an `importlib.metadata.EntryPoint` that Weft uses."""

    @property
    def name(self) -> str:
        """Name of the policy."""

    @property
    def value(self) -> str:
        """Address of the class: `package.module:Class`."""

    def load(self) -> Any:
        """Import and return the class; raises any exception that the import raises."""


class PolicyDescription(msgspec.Struct, frozen=True):
    """Description of a policy for users: `options` are its constructor's parameters with their
    defaults as text ("" for a required one). `unsafe` is the reason why the policy can reserve more
    GPU memory than exists, "" if it cannot."""

    name: str
    summary: str
    source: str
    reads: tuple[str, ...] = ()
    options: dict[str, str] = {}
    unsafe: str = ""


class Registry:
    """Registry of policy classes by name."""

    def __init__(self) -> None:
        self._known: dict[str, type[Policy]] = {}

    def register(self, policy: type[Policy]) -> None:
        """Add a policy under its own name; `BadInputError` if it has no name, or the name is
        taken."""
        subject = f"policy {policy.name or policy.__name__}"
        if not policy.name:
            raise BadInputError(subject, "it has no name; set the class attribute `name`")
        if policy.name in self._known:
            owner = _place(self._known[policy.name])
            raise BadInputError(subject, f"the name is taken by {owner}; set another `name`")
        self._known[policy.name] = policy

    def create(self, name: str, **options: Any) -> Policy:
        """Create a policy by name. `BadInputError` lists the valid names, options or values."""
        policy = self._known.get(name)
        if policy is None:
            raise BadInputError("policy", unknown(name, self.names()))
        valid = _options(policy)
        for option in options:
            if option not in valid:
                raise BadInputError(f"policy {name}", _unknown_option(option, policy))
        missing = [
            option
            for option, default in valid.items()
            if default is REQUIRED and option not in options
        ]
        if missing:
            raise BadInputError(f"policy {name}", f"it needs the option {_listed(missing)}")
        kinds = _kinds(policy)
        for option, value in options.items():
            try:
                _check(value, kinds.get(option, Any))
            except BadInputError as error:
                raise BadInputError(f"policy {name}, option {option}", error.problem) from None
        return policy(**options)

    def from_spec(self, spec: str) -> Policy:
        """Create a policy from text as users write it: `name` or `name:option=value,option=value`.

        Values are parsed as JSON if possible (numbers, true, lists), otherwise taken as text."""
        name, _, rest = spec.partition(":")
        options = {}
        for part in filter(None, rest.split(",")):
            option, equals, value = part.partition("=")
            if not (equals and option.strip()):
                raise BadInputError(
                    f"policy {spec}", f"{part!r} is not an option; write option=value"
                )
            options[option.strip()] = _value(value.strip())
        return self.create(name.strip(), **options)

    def compat_system(self, name: str) -> str:
        """Return the `compat_system` of the policy of this name; "" if it has no option
        `compat`."""
        policy = self._known.get(name)
        return policy.compat_system if policy and "compat" in _options(policy) else ""

    def names(self) -> tuple[str, ...]:
        """Return the names of all policies, sorted."""
        return tuple(sorted(self._known))

    def describe(self) -> tuple[PolicyDescription, ...]:
        """Return descriptions of all policies, sorted by name."""
        descriptions = []
        for name, policy in sorted(self._known.items()):
            options = {option: _shown(default) for option, default in _options(policy).items()}
            reads = tuple(sorted(policy.reads))
            descriptions.append(
                PolicyDescription(
                    name, policy.summary, policy.source, reads, options, policy.unsafe
                )
            )
        return tuple(descriptions)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _kinds(policy: type[Policy]) -> dict[str, Any]:
    """Return the types of the constructor's parameters; {} if their annotations cannot be
    resolved."""
    try:
        return get_type_hints(policy.__init__, include_extras=True)
    except Exception:  # any plugin's annotations; its constructor checks values
        return {}


def _check(value: Any, kind: Any) -> None:
    """Raise `BadInputError` unless the value has the parameter's type; nothing is converted."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInputError("", f"{value} is not a finite number")
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        bound = re.search(r"` ([<>]=? \S+)$", str(error))
        if get_origin(kind) is Literal:
            raise BadInputError("", unknown(str(value), map(str, get_args(kind)))) from None
        expected = _expected(kind) + (f" {bound[1]}" if bound else "")
        raise BadInputError("", f"{value!r} is not a valid value; write {expected}") from None
    except TypeError:  # a type that msgspec does not know
        return


def _expected(kind: Any) -> str:
    """Return a type in words, such as "a whole number"."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_expected, get_args(kind)))
    return _IN_WORDS.get(kind, getattr(kind, "__name__", str(kind)))


_IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "nothing",
}


def register_entry_points(
    registry: Registry, entry_points: Iterable[EntryPoint]
) -> tuple[str, ...]:
    """Register the policies of plugins; return one message, with the reason, for each plugin that
    is left out."""
    complaints = []
    for entry in entry_points:
        try:
            _register_one(registry, entry)
        except Exception as error:  # no plugin's import may stop the others
            message = error.problem if isinstance(error, BadInputError) else _one_line(error)
            complaints.append(f"plugin {entry.name} ({entry.value}) is left out: {message}")
    return tuple(complaints)


def _register_one(registry: Registry, entry: EntryPoint) -> None:
    policy = entry.load()
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise BadInputError("", "it is not a subclass of weft.core.framework.Policy")
    if policy.name != entry.name:
        raise BadInputError("", f"its class has the name {policy.name!r}; both names must agree")
    registry.register(policy)
    package = getattr(entry, "dist", None)
    if package is not None:
        policy.origin = PolicyOrigin(version=f"{package.name} {package.version}")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _options(policy: type[Policy]) -> dict[str, Any]:
    """Return the constructor's parameters with their defaults."""
    if policy.__init__ is object.__init__:
        return {}
    parameters = list(inspect.signature(policy.__init__).parameters.values())
    return {parameter.name: parameter.default for parameter in parameters[1:]}


def _unknown_option(option: str, policy: type[Policy]) -> str:
    """Return the error for an unknown option, with the options that users can write."""
    kinds = _kinds(policy)
    written = [name for name in _options(policy) if _is_written(kinds.get(name, Any))]
    if not written:
        return f"option {option!r} is unknown: this policy takes no options"
    return f"option {unknown(option, written, 'its options are')}"


def _is_written(kind: Any) -> bool:
    """Return False for a type whose values users cannot write, such as objects made in code."""
    if get_origin(kind) in (Union, UnionType):
        return any(_is_written(each) for each in get_args(kind) if each is not type(None))
    return kind in _IN_WORDS or not isinstance(kind, type) or kind.__module__ == "builtins"


def _shown(default: Any) -> str:
    return "required" if default is REQUIRED else str(default)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _place(policy: type[Policy]) -> str:
    return f"{policy.__module__}.{policy.__qualname__}"
