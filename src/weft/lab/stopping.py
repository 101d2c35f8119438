"""Makes SIGTERM end long work like Ctrl-C, with clean-up, keeping finished results."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM within this context; only has an effect in the main
    thread."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_cleaning_up(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`; on Ctrl-C or SIGTERM cancel it, then raise
    `KeyboardInterrupt`.

    A second SIGTERM does not interrupt the clean-up. Signals only have an effect in the main
    thread."""
    stops: list[int] = []

    async def stoppable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int, _frame: object) -> None:
            if not stops and not task.cancelling():
                loop.call_soon_threadsafe(task.cancel)
            stops.append(number)

        before = signal.signal(signal.SIGTERM, stop)
        try:
            return await work
        finally:
            signal.signal(signal.SIGTERM, before)

    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    try:
        result = asyncio.run(stoppable())
    except asyncio.CancelledError:
        if stops:
            raise KeyboardInterrupt from None
        raise
    if stops:
        raise KeyboardInterrupt
    return result
