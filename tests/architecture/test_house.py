"""The house rules that no linter knows: sizes, rooms that say what they are, no copies of data."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "weft").rglob("*.py"))
ROOMS = sorted(init.parent for init in (ROOT / "src" / "weft").glob("*/**/__init__.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_stay_small_and_functions_fit_a_screen(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 500, "split this file: it does more than one thing"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 50, f"{node.name} has {length} lines; give its steps names"


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_each_room_says_what_is_in_and_what_is_out(room: Path) -> None:
    doc = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    assert "In:" in doc, "the room's docstring must say what is in it"
    assert "Out:" in doc, "the room's docstring must say what is out of it"
    assert list(room.rglob("*.py")) != [room / "__init__.py"], "an empty room: remove it"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_rooms_without_a_meaning(path: Path) -> None:
    assert path.stem not in {"utils", "common", "helpers", "misc", "manager"}


def test_architecture_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    missing = [room.name for room in ROOMS if f"{room.name}/" not in text]
    assert not missing


NOT_KEYS = {
    "weft.dev/v1",  # apiVersion of files
    "weft.dev/decisions/v1",
    "weft.dev/interference-model/v1",
    "weft.dev/observed/v1",
    "weft.dev/explain",  # the audience of tokens
    "is empty; write apiVersion: weft.dev/v1 and what differs",
}
"""Texts with `weft.dev/` that name no annotation, label or resource."""


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_weft_dev_key_is_spelled_in_model_annotations_alone(path: Path) -> None:
    if path == ROOT / "src" / "weft" / "model" / "annotations.py":
        return
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    spelled = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        if "weft.dev/" in node.value or "weft\\.dev/" in node.value
    }
    assert spelled <= NOT_KEYS


def test_every_weft_dev_key_is_another() -> None:
    tree = ast.parse((ROOT / "src" / "weft" / "model" / "annotations.py").read_text())
    keys = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith("weft.dev/")
    ]
    assert len(keys) == len(set(keys)) > 20
