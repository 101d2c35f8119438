"""The page of the public API is current, and says something of each name."""

import importlib
import inspect
import re

import pytest
from public_api import PAGE, PUBLIC, ROOT, page

IMPORT = re.compile(r"^from (weft[\w.]*) import (.+)$", re.MULTILINE)
EXAMPLES = (
    "docs/howto/write-a-policy.md",
    "docs/tutorial/first-two-minutes.md",
    "examples/policy-plugin/weft_small_nodes.py",
)


def test_the_page_is_current() -> None:
    """Where it is not: run `make api`, and say in the changelog that something public changed."""
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("title", PUBLIC)
def test_every_public_name_is_described(title: str) -> None:
    module, names = PUBLIC[title]
    things = {name: getattr(importlib.import_module(module), name) for name in names}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_policies_import_public_names(example: str) -> None:
    public = {(module, name) for module, names in PUBLIC.values() for name in names}
    found = IMPORT.findall((ROOT / example).read_text())
    used = {(module, name) for module, names in found for name in names.split(", ")}
    assert used
    assert used - public == set()
