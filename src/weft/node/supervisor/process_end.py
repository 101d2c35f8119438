"""Waits for the end of a process that is not a child of this one."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def process_end(pid: int) -> Iterator[tuple[int, asyncio.Event]]:
    """Provide the process as a file descriptor, safe against reuse of its id, and an event that is
    set once the process has ended; `ProcessLookupError` if there is no such process."""
    fd = os.pidfd_open(pid)
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        yield fd, ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)
