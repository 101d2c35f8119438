"""Loads policies from Python files (`--policy ./mine.py:Mine`) for simulations and replays.

A policy must be in one self-contained file that imports only installed packages, so that the file's
hash identifies the code that decided."""

import hashlib
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft.core.framework.policy import Policy, PolicyOrigin
from weft.core.framework.registry import Registry
from weft.model.errors import BadInputError
from weft.model.nearest import nearest

if TYPE_CHECKING:
    from weft.core.record import Header

_SPEC = re.compile(r"(?P<file>[^:]+)(?::(?P<name>[^:=]+))?(?::(?P<options>.*))?", re.DOTALL)


class PolicyFile(NamedTuple):
    """Policy class in a file; "" for `class_name` means the only policy in the file."""

    path: Path
    class_name: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.class_name}" if self.class_name else str(self.path)


class PolicyRegistry(Registry):
    """Registry that finds policies by name, or by file and class."""

    def from_spec(self, spec: str) -> Policy:
        """Create a policy from its name, or from `FILE.py:Class`, each with `:option=value,…`
        appended."""
        match = _SPEC.fullmatch(spec)
        if match is None or not _is_file(match["file"]):
            return super().from_spec(spec)
        policy = self.add(PolicyFile(Path(match["file"]), match["name"] or ""))
        return super().from_spec(f"{policy.name}:{match['options'] or ''}")

    def add(self, file: PolicyFile) -> type[Policy]:
        """Load the policy of this file, register it under its name, and return it."""
        policy = load(file)
        if self._known.get(policy.name) is not policy:
            self.register(policy)
        return policy

    def restore(self, header: "Header", decisions: Path, files: Sequence[str]) -> list[str]:
        """Register the policies that a decisions file's header needs; return notes on those that
        have changed since.

        A policy file recorded in the header is loaded only if it is one of `files`: reading a
        record never runs code that the user did not name."""
        for file in files:
            match = _SPEC.fullmatch(file)
            if match is None or not _is_file(match["file"]):
                problem = "is not a file; write FILE.py:Class, for a policy in the header"
                raise BadInputError(f"--policy {file}", problem)
            self.add(PolicyFile(Path(match["file"]), match["name"] or ""))
        notes = []
        for use in (use for profile in header.profiles for use in profile.policies):
            then, policy = use.origin or PolicyOrigin(), self._known.get(use.name)
            if then.file and policy is None:
                problem = f"policy {use.name} is from a file; specify it: --policy {then.file}"
                raise BadInputError(str(decisions), problem)
            now = (policy.origin if policy else None) or PolicyOrigin()
            if (now.sha256, now.version) != (then.sha256, then.version):
                notes.append(
                    f"policy {use.name} differs from the one that decided: {_place(now)}, "
                    f"was {_place(then)}"
                )
        return notes

    def __getstate__(self) -> dict[str, Any]:
        """Leave out policies from files when pickling: a new process loads their files itself."""
        built_in = {n: p for n, p in self._known.items() if not (p.origin and p.origin.file)}
        return {"_known": built_in}


def load(file: PolicyFile) -> type[Policy]:
    """Return the policy class of a file. Raises `BadInputError` that names the faulty line, or the
    classes found if there is not exactly one policy."""
    from weft.files.reading import raw_bytes

    try:
        text = raw_bytes(file.path)
    except OSError as error:
        raise BadInputError(f"policy {file}", _unreadable(file.path, error)) from None
    sha256 = hashlib.sha256(text).hexdigest()
    policy = _class_of(_module(file.path, text, sha256), file)
    place = PolicyFile(file.path, policy.__name__)
    policy.origin = PolicyOrigin(str(place), sha256)
    return policy


def _is_file(text: str) -> bool:
    return text.endswith(".py") or "/" in text


def _unreadable(path: Path, error: OSError) -> str:
    from weft.files.reading import did_you_mean

    return (error.strerror or "cannot be read").lower() + did_you_mean(path)


def _module(path: Path, text: bytes, sha256: str) -> ModuleType:
    """Execute the file as a module; a file with the same content is loaded only once."""
    name = f"weft_policy_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise BadInputError(_line_of(path, error), _said_by(error)) from None
    return module


def _line_of(path: Path, error: BaseException) -> str:
    """Name the file, and the line at which loading failed if it is known."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"policy {path}, line {line}" if line else f"policy {path}"


def _said_by(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(f"{type(error).__name__}: {said}".split())
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; install it: a policy's file imports only what is installed"
    return text


def _class_of(module: ModuleType, file: PolicyFile) -> type[Policy]:
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    policies = [name for name in own if issubclass(getattr(module, name), Policy)]
    name = file.class_name or (policies[0] if len(policies) == 1 else "")
    if not name:
        write = f"write one of {', '.join(f'{file}:{policy}' for policy in policies)}"
        problem = f"has {len(policies)} policies; {write}" if policies else "has no policy; " + _HOW
        raise BadInputError(f"policy {file}", problem)
    chosen = getattr(module, name, None)
    if chosen is None:
        near = nearest(name, policies or own)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(own) or 'none'}"
        raise BadInputError(f"policy {file}", f"there is no class {name!r}; {hint}")
    if not (isinstance(chosen, type) and issubclass(chosen, Policy)):
        problem = f"{name} is not a policy; {_HOW}"
        if policies:
            problem += f", as {', '.join(policies)} is"
        raise BadInputError(f"policy {file}", problem)
    return chosen


_HOW = "derive a class from weft.core.framework.Policy"


def _place(origin: PolicyOrigin) -> str:
    """Return the file (with its hash) or the version from which a policy comes."""
    if origin.file:
        return f"{origin.file} (sha256 {origin.sha256[:12]}…)"
    return origin.version or f"Weft {weft.__version__}"
