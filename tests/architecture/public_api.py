"""Writes docs/reference/python-api.md: what authors of policies, dialects and experiments may rely
on, from docstrings. `PUBLIC` declares it; `make api` writes the page, and a test holds that it is
current, so that nothing public changes unseen.
"""

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "python-api.md"

PUBLIC: dict[str, tuple[str, tuple[str, ...]]] = {
    "Compare policies": ("weft.lab.notebook", ("compare", "Comparison")),
    "Write a policy": (
        "weft.core.framework",
        (
            *("Policy", "Query", "Demand", "Need", "Profile", "Plugin"),
            *("Ints", "Floats", "Bools", "Codes"),
        ),
    ),
    "Test a policy": ("weft.testing", ("decide", "node", "pod", "shape", "placement")),
    "Write a dialect": ("weft.dialects.dialect", ("Dialect", "DialectSettings", "PodAnnotations")),
    "Values": (
        "weft.model",
        ("PodRequest", "Shape", "GpuRequest", "Node", "Gpu", "Placement", "Share", "BadInputError"),
    ),
}
"""Sections of the page: the module that names are imported from, and the names."""

ARRAYS = {
    "numpy.int64": "Ints",
    "numpy.float64": "Floats",
    "numpy.bool": "Bools",
    "numpy.int8": "Codes",
    "numpy.generic": "Array",
    "typing.Any": "Array",
}
"""How arrays of NumPy are called on the page, by the type of their elements."""

HEAD = """\
# The Python API

Authors of policies, dialects and experiments may rely on the names of this page: they change only
with a note in the [changelog](../../CHANGELOG.md). Every other name may change at any time. The
page is made of docstrings (`make api`).
"""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for title, (module_name, names) in PUBLIC.items():
        module = importlib.import_module(module_name)
        parts.append(f"\n## {title}\n\n`from {module_name} import {', '.join(names)}`\n")
        parts += [_entry(module, name) for name in names]
    return "".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    thing = getattr(module, name)
    if get_origin(thing) is np.ndarray:
        _, of_type = get_args(thing)
        return f"\n### {name}\n\nA NumPy array of {get_args(of_type)[0].__name__}.\n"
    text = [f"\n### {name}\n\n", _code(f"{_kind(thing)} {name}{_signature(thing)}"), _doc(thing)]
    if inspect.isclass(thing):
        columns = [f"| `{name}` | {_safe(said)} |\n" for name, said in _attributes(thing)]
        members = [*columns, *(_member(thing, each) for each in _members(thing))]
        text += ["\n| member | |\n|---|---|\n", *members] if members else []
    return "".join(text)


def _kind(thing: Any) -> str:
    return "class" if inspect.isclass(thing) else "def"


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<[^<>]*>", "…", text.replace("'", ""))
    for array, short in ARRAYS.items():
        of_array = f"numpy.ndarray[tuple[typing.Any, ...], numpy.dtype[{array}]]"
        text = text.replace(of_array, short)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _code(text: str) -> str:
    """A line of code, or, where it is long, one line a parameter."""
    if len(text) > 100:
        head, _, rest = text.partition("(")
        body, _, tail = rest.rpartition(")")
        lines = "".join(f"    {part},\n" for part in _split(body))
        text = f"{head}(\n{lines}){tail}"
    return f"```text\n{text}\n```\n"


def _split(body: str) -> Iterator[str]:
    """Parameters, at the commas that stand in no bracket."""
    depth, part = 0, ""
    for letter in body:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter
    yield part.strip()


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return f"\n{_safe(text)}\n" if text else ""


def _attributes(thing: type) -> Iterator[tuple[str, str]]:
    """Attributes of the class that a text follows: their names, and the texts."""
    body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(thing))).body[0]
    assert isinstance(body, ast.ClassDef)
    for before, after in itertools.pairwise(body.body):
        target = before.targets[0] if isinstance(before, ast.Assign) else None
        target = before.target if isinstance(before, ast.AnnAssign) else target
        said = after.value if isinstance(after, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(said, ast.Constant):
            yield target.id, " ".join(str(said.value).split())


def _members(thing: type) -> list[str]:
    """Public members with a docstring that the class itself defines."""
    own = vars(thing)
    return [
        name
        for name, member in own.items()
        if not name.startswith("_") and _described(member) and inspect.getdoc(_bare(member))
    ]


def _described(member: Any) -> bool:
    return isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)


def _bare(member: Any) -> Any:
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def _member(thing: type, name: str) -> str:
    member = vars(thing)[name]
    is_property = isinstance(member, property)
    signature = "" if is_property else _signature(getattr(thing, name))
    first = (inspect.getdoc(_bare(member)) or "").split("\n\n")[0].replace("\n", " ")
    return f"| `{name}{signature.replace('|', 'or')}` | {_safe(first)} |\n"


def _safe(text: str) -> str:
    """As it is, but with nothing that a table or HTML would read."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
