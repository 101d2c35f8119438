"""Consoles to be looked at: a process of its own, or one of any source on a thread."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from chromium import Window

from weft.cluster.http.viewers import ViewerOptions, Viewers
from weft.console.server import ConsoleServer
from weft.console.sources import PictureSource
from weft.kube.client import Endpoint
from weft.kube.read_only import ReadOnlyClient

PATIENCE_S = 300
"""Longer than a day takes to be simulated, at low priority beside others that use all cores."""


@contextlib.contextmanager
def console(*options: str) -> Iterator[str]:
    """The address of a `weft console` of its own."""
    words = [sys.executable, "-m", "weft.cli.main", "console", *options, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://" in said
        try:
            yield "http://" + said.partition("http://")[2].split()[0]
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


@contextlib.contextmanager
def served(source: PictureSource, tokens_of: Endpoint | None = None) -> Iterator[str]:
    """A console of this source, on a thread; of one that lives with new pictures. With `tokens_of`
    an API server viewers sign in, and are asked about all the time."""
    started, port = threading.Event(), [0]
    loop = asyncio.new_event_loop()
    server: list[ConsoleServer] = []
    pictures: list[asyncio.Task[None]] = []

    asking = contextlib.AsyncExitStack()

    async def start() -> None:
        viewers = None
        if tokens_of is not None:
            client = await asking.enter_async_context(ReadOnlyClient(tokens_of))
            viewers = Viewers(client, ViewerOptions(fresh_s=0.1))
        server.append(ConsoleServer(source, viewers=viewers))
        port[0] = await server[0].listen("127.0.0.1", 0)
        pictures.append(asyncio.create_task(server[0].run()))
        started.set()

    async def stop() -> None:
        pictures[0].cancel()
        await server[0].close()
        await asking.aclose()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def eventually(window: Window, script: str) -> Any:
    """The value of a script, once it is true."""
    until = time.monotonic() + PATIENCE_S
    while not (found := window.run(script)):
        assert time.monotonic() < until, script
    return found


def opened(window: Window, url: str, width: int = 1280, *, dark: bool = False) -> None:
    window.open(url, width, dark=dark)
    eventually(window, "document.querySelector('#sums .tile') !== null")


def check(window: Window, url: str) -> None:
    """Nothing went wrong, nothing is cut off, and nothing came from elsewhere."""
    assert window.browser.complaints == []
    origin = "/".join(url.split("/")[:3])
    assert [asked for asked in window.browser.requests if not asked.startswith(origin + "/")] == []
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert window.run(wide)
