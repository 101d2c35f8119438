"""Stopping a turn by SIGTERM as by Ctrl-C: its coroutine is cancelled, and cleans up."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_cleaning_up(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run(work)`; `KeyboardInterrupt` once it has cleaned up after Ctrl-C or SIGTERM.

    A second SIGTERM does not cut the clean-up short. Only the main thread hears signals.
    """
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
