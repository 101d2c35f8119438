"""The page of the public API is current, and says something of each name."""

import importlib
import inspect

import pytest
from public_api import PAGE, PUBLIC, page


def test_the_page_is_current() -> None:
    """Where it is not: run `make api`, and say in the changelog that something public changed."""
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("title", PUBLIC)
def test_every_public_name_is_described(title: str) -> None:
    module, names = PUBLIC[title]
    things = {name: getattr(importlib.import_module(module), name) for name in names}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []
