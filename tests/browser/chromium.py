"""A headless Chromium, driven by its DevTools protocol: one page, and what goes wrong in it."""

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

MISSING = (
    "no chromium command: apt-get install -y --no-install-recommends chromium fonts-liberation"
)
_PATIENCE_S = 60


def program() -> str | None:
    """Chromium's command, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class PageError(Exception):
    """A script that the test ran in the page failed, or the page does not answer any more."""


class Browser:
    """Chromium with one page. `complaints` are errors on its console, `requests` what it loaded.

    `stuck` is set once a page crashed or did not answer: only a new browser helps then.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(
            prefix="weft-chromium-", ignore_cleanup_errors=True
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._tabs: list[str] = []
        self.stuck = False
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def __aenter__(self) -> Self:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += [
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-extensions",
        ]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={self._folder.name}"]
        self._process = await asyncio.create_subprocess_exec(
            *(self._command, *flags, "about:blank"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(_PATIENCE_S):
            address = await self._address()
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(address, max_msg_size=1 << 28)
        self._reader = asyncio.create_task(self._read())
        await self._new_page()
        self._first = self._session
        await self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        return self

    async def _new_page(self) -> str:
        """An empty page: what is asked from here on is asked there."""
        self._session = ""
        target = await self.ask("Target.createTarget", url="about:blank")
        number = str(target["targetId"])
        attached = await self.ask("Target.attachToTarget", targetId=number, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Inspector"):
            await self.ask(f"{domain}.enable")
        return number

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.cancel()
        await self._socket.close()
        await self._http.close()
        self.kill()
        await self._process.wait()
        self._folder.cleanup()

    def kill(self) -> None:
        """End it as the kernel does where memory runs out."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _address(self) -> str:
        """Where it listens, which it says on stderr."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            said = line.decode(errors="replace")
            if "DevTools listening on " in said:
                self._drain = asyncio.create_task(self._process.stderr.read())
                return said.split("DevTools listening on ")[1].strip()
        raise PageError("chromium ended before it listened")

    async def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            await self._socket.send_str(json.dumps(message))
        except ConnectionError as error:
            self.stuck = True
            raise PageError(f"{method}: the browser has ended: {error}") from None
        answer = await self._patiently(method, self._answers[number])
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def _patiently(self, what: str, awaited: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await awaited
        except TimeoutError:
            self.stuck = True
            raise PageError(f"{what}: no answer in {_PATIENCE_S} s") from None

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if not answer.done():  # nobody waits any more
                    answer.set_result(said)
            elif said["method"] == "Inspector.targetCrashed":
                self._end("the page crashed, presumably for want of memory")
            elif said["method"] == "Page.loadEventFired":
                if said["sessionId"] == self._session:
                    self._loaded.set()
            else:
                self._note(said["method"], said["params"])
        self._end("the browser has ended")

    def _end(self, why: str) -> None:
        """Say so to whoever waits for an answer: none will come."""
        self.stuck = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PageError(why))

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])

    async def open(self, page: Path | str) -> None:
        """Load a file or an address, and forget what was noted before."""
        await self._navigate("about:blank")  # the last page asks for nothing more
        self.complaints, self.requests = [], []
        await self._navigate(page if isinstance(page, str) else page.as_uri())

    async def _navigate(self, address: str) -> None:
        self._loaded.clear()
        await self.ask("Page.navigate", url=address)
        await self._patiently(address, self._loaded.wait())

    async def tab(self, address: str) -> None:
        """Open one more page, as if by the reader: what is asked from here on is asked there."""
        self._tabs.append(await self._new_page())
        await self._navigate(address)

    async def back(self) -> None:
        """Close all pages but the first one, and go on with that."""
        self._session = ""
        while self._tabs:
            await self.ask("Target.closeTarget", targetId=self._tabs.pop())
        self._session = self._first

    async def look(self, width: int, *, dark: bool) -> None:
        """The size of the window, and the reader's colours."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page, or what it promises."""
        answer = await self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise PageError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """A key, down and up."""
        codes = {
            "Tab": 9,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        code = {"Enter": 13, " ": 32, **codes}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            await self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **more,
            )

    async def type(self, text: str) -> None:
        """Text, into what has the focus."""
        await self.ask("Input.insertText", text=text)


class Window:
    """A browser for tests that are no coroutines: one for many of them, as a start takes seconds.

    It is what `Browser` is, call by call.
    """

    def __init__(self, runner: asyncio.Runner, command: str) -> None:
        self._runner, self._command = runner, command
        self._start()

    def _start(self) -> None:
        self.browser = self._runner.run(Browser(self._command).__aenter__())

    def close(self) -> None:
        self._runner.run(self.browser.__aexit__(None, None, None))

    def for_next_test(self) -> None:
        """Leave no page of the last test open, and start again where one does not answer."""
        if self.browser.stuck:
            self.close()
            self._start()
        else:
            self.back()

    def open(self, page: Path | str, width: int, *, dark: bool = False) -> None:
        self._runner.run(self.browser.look(width, dark=dark))
        self._runner.run(self.browser.open(page))

    def run(self, script: str) -> Any:
        return self._runner.run(self.browser.run(script))

    def press(self, key: str) -> None:
        self._runner.run(self.browser.press(key))

    def type(self, text: str) -> None:
        self._runner.run(self.browser.type(text))

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._runner.run(self.browser.ask(method, **parameters))

    def tab(self, address: str) -> None:
        self._runner.run(self.browser.tab(address))

    def back(self) -> None:
        self._runner.run(self.browser.back())
