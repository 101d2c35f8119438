"""Tests in a browser run where they are asked for: starting one takes a second or more."""

from pathlib import Path

import pytest

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
