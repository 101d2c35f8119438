"""Rules of the code that no linter knows: sizes, packages that say what they are, unique names."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "weft").rglob("*.py"))
OTHERS = [
    path for folder in ("tests", "benchmarks", "deploy") for path in (ROOT / folder).rglob("*.py")
]
PACKAGES = sorted(init.parent for init in (ROOT / "src" / "weft").glob("*/**/__init__.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def module_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def statements_of(path: Path) -> list[ast.stmt]:
    """Every statement of the file, nested ones too; expressions, which are most nodes, are not."""
    statements, bodies = [], [module_of(path).body]
    while bodies:
        for statement in bodies.pop():
            statements.append(statement)
            for block in ("body", "orelse", "finalbody"):
                bodies.append(getattr(statement, block, []))
            for inner in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                bodies.append(inner.body)
    return statements


def test_files_stay_small() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in (*SOURCES, *OTHERS)}
    long = {path: length for path, length in lengths.items() if length > 700}
    assert long == {}, "split these files: they do more than one thing"


FUNCTION = re.compile(r"^( *)(?:async )?def (\w+).*\n(?:(?:\1[ )].*)?\n)*", re.MULTILINE)
"""A function as the formatter indents it, with those in it: tests are many to be parsed."""


def test_functions_fit_a_screen() -> None:
    lengths = {
        f"{name(path)}:{function[2]}": function[0].strip().count("\n") + 1
        for path in (*SOURCES, *OTHERS)
        for function in FUNCTION.finditer(path.read_text())
    }
    long = {function: length for function, length in lengths.items() if length > 70}
    assert long == {}, "give their steps names"


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_each_package_says_what_is_in_and_what_is_out(package: Path) -> None:
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    doc = " ".join(doc.split())
    assert "Contents:" in doc, "the package's docstring must say what is in it"
    assert "Not here:" in doc, "the package's docstring must say what is out of it"
    assert list(package.rglob("*.py")) != [package / "__init__.py"], "an empty package: remove it"


def test_no_modules_without_a_meaning() -> None:
    meaningless = {"utils", "common", "helpers", "misc", "manager"}
    assert [name(path) for path in SOURCES if path.stem in meaningless] == []


def test_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    missing = [package.name for package in PACKAGES if f"{package.name}/" not in text]
    assert not missing


def test_public_class_names_are_unique() -> None:
    """A name that is met in a message or a signature leads to one class."""
    classes = Counter(
        node.name
        for path in SOURCES
        for node in module_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_the_formatter_lays_out_every_line() -> None:
    """At most two tables may keep their own layout, each with a reason behind the mark."""
    lines = [line for path in SOURCES for line in path.read_text().splitlines()]
    kept = [line for line in lines if re.search(r"# *fmt: *(skip|off)", line)]
    assert len(kept) <= 2
    assert [line for line in kept if not re.search(r"# *fmt: *(skip|off)[ ,#]+\w+", line)] == []


def test_wings_import_each_other_one_way_and_seldom() -> None:
    """`testing` is no wing: builders for tests may import anything. `host` puts the wings' parts
    together, and may import any below it."""
    arrows = {arrow for path in SOURCES for arrow in arrows_from(path)}
    arrows = {(wing, other) for wing, other in arrows if "testing" not in (wing, other)}
    assert len([arrow for arrow in arrows if "host" not in arrow]) <= 44
    below: dict[str, set[str]] = {}
    for wing, other in arrows:
        below.setdefault(wing, set()).add(other)
    assert list(TopologicalSorter(below).static_order())  # a circle raises CycleError


def arrows_from(path: Path) -> set[tuple[str, str]]:
    """(wing, the wing it imports), for each import in this file."""
    wing = path.relative_to(ROOT / "src" / "weft").parts[0].replace("__main__.py", "cli")
    modules: list[str] = []
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "weft":
            modules += [f"weft.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
    others = {module.split(".")[1] for module in modules if module.startswith("weft.")}
    return {(wing, other) for other in others - {wing}}


NOT_KEYS = {
    "weft.dev/v1",  # apiVersion of files
    "weft.dev/decisions/v2",
    "weft.dev/decisions/v3",
    "weft.dev/interference-model/v1",
    "weft.dev/observed/v1",
    "weft.dev/explain",  # the audiences of tokens
    "weft.dev/console",
    "is empty; write apiVersion: weft.dev/v1 and the settings that differ from the defaults",
}
"""Texts with `weft.dev/` that name no annotation, label or resource."""


def test_every_weft_dev_key_is_spelled_in_model_annotations_alone() -> None:
    annotations = ROOT / "src" / "weft" / "model" / "annotations.py"
    spelled = {
        (name(path), text) for path in SOURCES if path != annotations for text in keys_in(path)
    }
    assert [(path, text) for path, text in spelled if text not in NOT_KEYS] == []


def keys_in(path: Path) -> set[str]:
    """Texts with `weft.dev/` in this file's code, its docstrings left out."""
    if not re.search(r"weft\\*.dev/", path.read_text()):  # walks cost the most
        return set()
    nodes = list(ast.walk(module_of(path)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        if "weft.dev/" in node.value or "weft\\.dev/" in node.value
    }


def test_every_weft_dev_key_is_another() -> None:
    tree = ast.parse((ROOT / "src" / "weft" / "model" / "annotations.py").read_text())
    keys = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith("weft.dev/")
    ]
    assert len(keys) == len(set(keys)) > 20


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their bare names: of two that are called alike one is not run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
