"""Names in backticks in docstrings exist: classes, functions, attributes, settings, files."""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weft"


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


@cache
def docstrings_of(path: Path) -> list[ast.Constant]:
    return list(docstrings(trees()[path]))


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def words_of_the_code() -> set[str]:
    """Every identifier, and every word in a string that is no docstring."""
    words = {*dir(builtins), *keyword.kwlist}
    for path, tree in trees().items():
        words.update(path.with_suffix("").parts)
        texts = set(map(id, docstrings_of(path)))
        for node in ast.walk(tree):
            for field in ("id", "attr", "arg", "name", "asname", "module"):
                if isinstance(name := getattr(node, field, None), str):
                    words.update(name.split("."))
            if isinstance(node, ast.Constant) and id(node) not in texts:
                words.update(re.findall(r"\w+", str(node.value)))
    return words


RIDDLE = re.compile(r'^ *"""(What|Whether|Who|Whom|Whose|Of|It)(?=[\s,:])', re.MULTILINE)


@pytest.mark.parametrize("folder", ["src/weft", "tests", "benchmarks"])
def test_docstrings_begin_with_what_a_thing_is_or_does(folder: str) -> None:
    """Not with a question that the reader then has to put together."""
    riddles = [
        f"{path.relative_to(ROOT)}: {match[0].strip()} …"
        for path in (ROOT / folder).rglob("*.py")
        for match in RIDDLE.finditer(path.read_text())
    ]
    assert riddles == []


def test_names_in_docstrings_exist() -> None:
    words, unknown = words_of_the_code(), []
    for path in trees():
        for text in docstrings_of(path):
            for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", str(text.value)):
                if name.endswith((".py", ".md")):
                    exists = any(str(other).endswith("/" + name) for other in trees())
                else:
                    exists = words.issuperset(name.split("."))
                if not exists:
                    unknown.append(f"{path.relative_to(SOURCE)}:{text.lineno} {name}")
    assert unknown == []


def test_files_in_docstrings_exist() -> None:
    unknown = []
    for path in trees():
        for text in docstrings_of(path):
            for name in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", str(text.value)):
                if not any(
                    (root / name).exists() for root in (SOURCE, path.parent, SOURCE.parents[1])
                ):
                    unknown.append(f"{path.relative_to(SOURCE)}:{text.lineno} {name}")
    assert unknown == []
