"""Shared by all tests: Hypothesis' profile, the event loop, and where the real traces lie."""

import asyncio
import functools
import gc
import inspect
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from long_form import few_or_many

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: threads for small matrices only wait
# Tables have no width but where a test says one. Readline, which pytest imports, sets one that only
# child processes see.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")
# What a shell starts in the background ignores Ctrl-C, and so would every command that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "weft",
    deadline=None,
    max_examples=few_or_many(25, 100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("weft-ci", settings.get_profile("weft"), derandomize=True)
settings.load_profile("weft-ci" if os.environ.get("CI") == "true" else "weft")

PROJECT = Path(__file__).resolve().parent.parent
ASYNC_TEST_LIMIT_S = 120.0  # what an `async def` test waits for must come


gc.disable()  # until all tests are collected: it walked what is kept 40 times, a third of the time


def pytest_collection_finish() -> None:
    """Keeps what collecting made (800,000 objects): the garbage collector need not walk it.

    It is run seldom: at the usual thresholds it took a twentieth of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 30, 30)
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Time that leaps for tests marked `virtual_time`, asyncio's own loop for all others."""
    if item.get_closest_marker("virtual_time"):
        from fakes.api_time import LeapingLoop

        return {"virtual": LeapingLoop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """An `async def` test that hangs fails; in virtual time it fails by itself."""
    test = getattr(item, "obj", None)
    if not inspect.iscoroutinefunction(test) or item.get_closest_marker("virtual_time"):
        return

    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(ASYNC_TEST_LIMIT_S):
            await test(*args, **kwargs)

    item.obj = limited  # type: ignore[attr-defined]


def pytest_runtest_teardown() -> None:
    """Takes off what a command that ran in the test set up for its log: its stream is closed."""
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def weft_data() -> Path:
    """The directory with the published traces: WEFT_DATA, or ../shared/data beside the project."""
    told = os.environ.get("WEFT_DATA")
    path = Path(told) if told else PROJECT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no trace data: {path} is no directory; set WEFT_DATA to where the data lies")
    return path
