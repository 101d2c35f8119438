"""Tests in a browser run where they are asked for: starting one takes a second or more."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import MISSING, Window, program

HERE = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Asked for is what `-m` or a path on the command line names."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker("browser")
    paths = [Path(word.partition("::")[0]).resolve() for word in config.args]
    if "browser" not in config.option.markexpr and not any(p.is_relative_to(HERE) for p in paths):
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def command(pytestconfig: pytest.Config) -> str:
    """Chromium's command; without it the tests are left out, visibly, but not in CI."""
    if found := program():
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the tests in Chromium: {MISSING}", pytrace=False)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write(f"SKIPPED {MISSING}\n")
    pytest.skip(MISSING)


@pytest.fixture(scope="session")
def chromium(command: str) -> Iterator[Window]:
    """One Chromium for all tests."""
    with asyncio.Runner() as runner:
        window = Window(runner, command)
        yield window
        window.close()


@pytest.fixture
def window(chromium: Window) -> Window:
    """A page of it: a test that left pages open, or hung, does not fail those after it."""
    chromium.for_next_test()
    return chromium
