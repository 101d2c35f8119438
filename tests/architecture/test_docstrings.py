"""Names in backticks in docstrings exist: classes, functions, attributes, settings, files."""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from draw_words import weak_share

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weft"


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


@cache
def docstrings_of(path: Path) -> list[ast.Constant]:
    return list(docstrings(trees()[path]))


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
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


def test_few_function_docstrings_open_with_an_article_or_a_preposition() -> None:
    """A verb or a noun first: `make words` draws docstrings to be read."""
    assert weak_share() <= 0.10


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


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OTHERS = {"_", "a", "class", "clusters", "contexts", "create", "e", "Equal", "extra", "null"}
OTHERS |= {"pynvml", "up", "users", "v1", "zone"}
"""Words of others: Kubernetes' fields, verbs and values, languages, packages; signs."""
SIGNALS = {"occupants", "residencies"}
"""Values of `Policy.reads`, which each policy names for itself."""


def defined(node: ast.AST) -> set[str]:
    """Every identifier in it, and every word in a string that is no docstring."""
    found: set[str] = set()
    texts = set(map(id, docstrings(node)))
    for part in ast.walk(node):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(part, field, None), str):
                found.update(name.split("."))
        if isinstance(part, ast.Constant) and id(part) not in texts:
            found.update(re.findall(r"\w+", str(part.value)))
    return found


def inherited(tree: ast.Module, node: ast.ClassDef) -> set[str]:
    """Names that a class' bases in the same file define."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    named = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name in bases]
    return {name for base in named for name in defined(base)}


def unknown_of(tree: ast.Module, elsewhere: set[str]) -> Iterator[str]:
    """Single words in backticks that neither the class or function has nor its file at its top."""
    top = {name for node in tree.body for name in getattr(node, "name", "").split()}
    plain = (n for n in tree.body if not isinstance(n, (*FUNCTIONS, ast.ClassDef)))
    top.update(name for node in plain for name in defined(node))

    def visit(node: ast.AST, scope: set[str]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            own = scope
            if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                own = scope | defined(child)
                if isinstance(child, ast.ClassDef):
                    own |= inherited(tree, child)
                text = ast.get_docstring(child) or ""
                for name in re.findall(r"`([A-Za-z_]\w*)(?:\(\))?`", text):
                    if name not in own | elsewhere and not re.search("[a-z][A-Z]", name):
                        yield f"{child.lineno} {child.name}: {name}"
            yield from visit(child, own if isinstance(child, ast.ClassDef) else scope)

    return visit(tree, top)


def test_names_in_docstrings_exist_where_they_stand() -> None:
    """A rename that forgets the docstring is found, also where another file has such a name. From
    elsewhere come modules, classes, and functions of two words or more."""
    elsewhere = {*dir(builtins), *keyword.kwlist, *OTHERS, *SIGNALS}
    for path, tree in trees().items():
        elsewhere.update(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and re.search("_|[A-Z]", node.name):
                elsewhere.add(node.name)
            if isinstance(node, ast.Name) and node.id.isupper():
                elsewhere.add(node.id)
    assert [
        f"{path.relative_to(SOURCE)}:{unknown}"
        for path, tree in trees().items()
        for unknown in unknown_of(tree, elsewhere)
    ] == []


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
