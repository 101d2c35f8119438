"""Configures containerd to fail closed, if a trial shows that it starts containers with a share
while the agent is away.

trial: open ──▶ drop-in written ──▶ containerd ended, restarted by its service ──▶ trial
                                                                                    │
      closed: the drop-in stays ◀───────────────────────────────────────────────────┤
      open, or containerd does not come back: the drop-in is removed ◀──────────────┘

If the drop-in did not help, neither this agent nor the next tries again until containerd's
configuration or version changes (recorded in the file `state`, which a reboot deletes). If an agent
died in between, the next agent reads in that file that a drop-in was being tried.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from weft.model.runtimes import closes, how_to_close
from weft.node.agent.fail_closed import ClosedTrial, FailClosed, RuntimeTold
from weft.node.containerd.daemon import END_S, Daemon, daemon_at
from weft.node.containerd.drop_in import DropIn, RuntimeConfigError, digest_of, drop_in_of

log = logging.getLogger("weft.agent")

COME_BACK_S = 90.0
"""Seconds in which containerd must be back after SIGTERM: its systemd unit waits 5 s, and loading
many containers takes about as long."""


class ConfiguringOptions(msgspec.Struct, frozen=True):
    """`socket` is containerd's. `state`: the file that records what was tried. `end_s`,
    `come_back_s`: seconds allowed for containerd to end, and to return and pass a trial."""

    socket: Path
    state: Path
    proc: Path = Path("/proc")
    end_s: float = END_S
    come_back_s: float = COME_BACK_S


class _Tried(msgspec.Struct):
    """The state file: the path of a drop-in being tried (`pending`), or why a drop-in did not help
    (`refused`), and for which containerd (`of`): its version, and a digest of its configuration."""

    pending: str = ""
    refused: str = ""
    of: str = ""


class ContainerdConfiguring:
    """A part of the agent. `drop_in` is the drop-in file in force, if any; `problem` says why
    containerd could not be configured ("" otherwise). `listeners` are called after each
    attempt."""

    def __init__(
        self, plugin: RuntimeTold, closed: FailClosed, options: ConfiguringOptions
    ) -> None:
        self.drop_in: Path | None = None
        self.problem = ""
        self.restarts = 0
        self.listeners: list[Callable[[], None]] = []
        self._plugin, self._closed, self._options = plugin, closed, options
        self._due = asyncio.Event()
        closed.listeners.append(self._due.set)

    async def run(self) -> None:
        """Configure containerd after each trial that shows the need, until cancelled."""
        if self._closed.trial is not None:
            self._due.set()
        if pending := self._read().pending:
            await self._resume(pending)
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                self.drop_in, self.problem = await self._looked(), ""
            except RuntimeConfigError as error:
                self.drop_in = None
                self._say(str(error))
            for listen in self.listeners:
                listen()

    async def _looked(self) -> Path | None:
        """Return the drop-in in force, after writing it if needed; `RuntimeConfigError` if that
        fails."""
        trial = self._closed.trial
        if trial is None or trial.outcome == "unknown":
            return self.drop_in
        runtime = self._plugin.runtime
        if not closes(runtime) or not runtime.startswith("containerd "):
            if trial.outcome == "closed":
                return None
            text = f"{runtime or 'this runtime'} is not configured by the agent"
            raise RuntimeConfigError(f"{text}: {how_to_close(runtime)}")
        if trial.outcome == "closed":
            return self._own()
        daemon = daemon_at(self._options.socket, self._options.proc)
        drop_in = drop_in_of(daemon.config)
        of = f"{runtime} {digest_of(daemon.config)}"
        if (tried := self._read()).refused and tried.of == of:
            raise RuntimeConfigError(tried.refused)
        return await self._configured(drop_in, daemon, of)

    def _own(self) -> Path | None:
        """Return the path of the agent's own drop-in if it exists unchanged; None otherwise."""
        try:
            drop_in = drop_in_of(daemon_at(self._options.socket, self._options.proc).config)
            return drop_in.path if drop_in.written() else None
        except RuntimeConfigError:
            return None

    async def _configured(self, drop_in: DropIn, daemon: Daemon, of: str) -> Path:
        """Write the drop-in, restart containerd and return the drop-in's path; `RuntimeConfigError`
        if it did not help and was removed again."""
        drop_in.write()
        self._write(_Tried(pending=str(drop_in.path), of=of))
        log.warning(
            "restarting containerd, so that it fails closed without the agent: %s", drop_in.path
        )
        try:
            trial = await self._restarted(daemon)
        except RuntimeConfigError as error:
            drop_in.remove()
            self._forget()
            raise RuntimeConfigError(f"{error}; {drop_in.path} was removed again") from None
        if trial is not None and trial.outcome == "closed":
            self._forget()
            log.info("containerd now fails closed without the agent: %s", drop_in.path)
            return drop_in.path
        drop_in.remove()
        within_s = self._options.come_back_s
        why = f"with it {trial.text}" if trial is not None else _not_back(within_s)
        text = f"{drop_in.path} was removed again: {why}"
        text = f"{text}; it is tried again when containerd's configuration or version changes"
        self._write(_Tried(refused=text, of=of))
        try:
            if trial is None:
                trial = await self._tried(self._closed.trials)
            else:
                trial = await self._restarted(daemon_at(self._options.socket, self._options.proc))
        except RuntimeConfigError as error:
            text = f"{text}; then: {error}"
        else:
            if trial is None:
                text = f"{text}; containerd did not come back without it either: start it "
                text += "(systemctl start containerd)"
        raise RuntimeConfigError(text)

    async def _restarted(self, daemon: Daemon) -> ClosedTrial | None:
        """Restart containerd and return the next trial; None if containerd was not back in time."""
        self.restarts += 1
        await daemon.end(self._options.end_s)
        return await self._tried(self._closed.trials)

    async def _tried(self, before: int) -> ClosedTrial | None:
        """Return the next conclusive trial; None if there is none in time."""
        try:
            async with asyncio.timeout(self._options.come_back_s):
                while True:
                    trial = self._closed.trial
                    if self._closed.trials > before and trial and trial.outcome != "unknown":
                        self._due.clear()
                        return trial
                    self._due.clear()
                    await self._due.wait()
        except TimeoutError:
            return None

    async def _resume(self, pending: str) -> None:
        """Continue after an agent that died while it configured containerd.

        If containerd runs, continue as at the start; if not, remove the drop-in, which may be the
        reason.
        """
        if self._closed.trials or await self._tried(0) is not None:
            self._due.set()
            return
        try:
            DropIn(Path(pending), "").remove()
        except RuntimeConfigError as error:
            self._say(str(error))
        else:
            self._say(f"{pending} was removed again: {_not_back(self._options.come_back_s)}")
        self._forget()

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.error("containerd is not configured to fail closed without the agent: %s", problem)
        self.problem = problem

    def _read(self) -> _Tried:
        try:
            return msgspec.json.decode(self._options.state.read_bytes(), type=_Tried)
        except (OSError, msgspec.MsgspecError):
            return _Tried()

    def _write(self, tried: _Tried) -> None:
        """Write the state file; if that fails, the next agent tries a drop-in once more."""
        try:
            self._options.state.parent.mkdir(parents=True, exist_ok=True)
            self._options.state.write_bytes(msgspec.json.encode(tried))
        except OSError as error:
            log.warning("%s can't be written: %s", self._options.state, error.strerror)

    def _forget(self) -> None:
        self._options.state.unlink(missing_ok=True)


def _not_back(within_s: float) -> str:
    return f"containerd was not back {within_s:.0f} s after SIGTERM"
