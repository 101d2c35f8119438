"""Compares a recorded day with the same day under another policy.

A separate process of low priority simulates the day, for a limited time and one policy at a time.
It writes its decisions to a file, which is then read as any decisions file. Both days are shown at
the same time after their first event, once all events of that instant have been handled.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from weft.console.picture import Picture
from weft.console.recorded import DaySums, RecordedSource

LONGEST_S = 900.0
"""Maximum seconds to simulate a day; `weft simulate` can compare days that take longer."""
MOST_KEPT = 3
"""Maximum number of simulated days in memory: each takes as much as the record itself."""
LOOK_S = 0.25
State = Literal["simulating", "reading", "ready", "failed"]


class ComparedDay(msgspec.Struct, frozen=True):
    """Progress of a comparison: `percent` is an estimate, None if it cannot be estimated.
    `recorded` and `other` are sums at each of the record's moments, once both days are ready."""

    policy: str
    state: State
    percent: int | None = None
    text: str = ""
    recorded: Sequence[DaySums] = ()
    other: Sequence[DaySums] = ()


class BothPictures(msgspec.Struct, frozen=True):
    """The pictures of both days at one time."""

    recorded: Picture
    other: Picture


class Comparisons:
    """Compares one record with the same day under other policies.

    `command(policy, out)` returns the command line of a process that simulates the day and writes
    its decisions to `out`; `open_day` reads that file at the moments of `recorded`, in a thread.
    `record_bytes` is the record's size, from which progress is estimated; 0 if the new file may be
    of another size. `policies` are those that viewers may choose.
    """

    def __init__(
        self,
        recorded: RecordedSource,
        policies: Sequence[str],
        command: Callable[[str, Path], Sequence[str]],
        open_day: Callable[[Path], RecordedSource],
        record_bytes: int = 0,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._recorded, self.policies = recorded, tuple(policies)
        self._command, self._open_day = command, open_day
        self._record_bytes, self._longest_s = record_bytes, longest_s
        self._days: dict[str, ComparedDay] = {}
        self._others: dict[str, RecordedSource] = {}
        self._task: asyncio.Task[None] | None = None

    def day(self, policy: str) -> ComparedDay:
        """Return the progress of this policy's day; start its simulation if none is running. While
        the day of another policy is simulated, return the progress of that day.

        A failure is returned once: the next call starts the simulation again.
        """
        if (found := self._days.get(policy)) is not None:
            if found.state == "failed":
                del self._days[policy]
            return found
        if self._task is not None and not self._task.done():
            busy = next(
                day for day in self._days.values() if day.state in ("simulating", "reading")
            )
            return msgspec.structs.replace(busy, text=f"{busy.policy} is simulated first")
        worth = sorted(self._days, key=lambda name: self._days[name].state != "failed")
        for least in worth[: max(0, len(worth) + 1 - MOST_KEPT)]:  # failed ones, then the oldest
            del self._days[least]
            self._others.pop(least, None)
        day = self._days[policy] = ComparedDay(policy, "simulating", 0)
        self._task = asyncio.create_task(self._make(policy))
        return day

    def pictures(self, policy: str, number: int) -> BothPictures | None:
        """Return the pictures of both days at the time of the record's moment `number`, from 0;
        None until the day under this policy is ready."""
        recorded, other = self._recorded, self._others.get(policy)
        if other is None:
            return None
        at_s = recorded.elapsed_s[number]
        return BothPictures(*(day.at(_moment(day, at_s)) for day in (recorded, other)))

    async def close(self) -> None:
        """End the simulation that is running, if any."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _make(self, policy: str) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="weft-compare-") as folder:
                out = Path(folder) / "day.jsonl"
                if trouble := await self._simulate(policy, out):
                    self._days[policy] = ComparedDay(policy, "failed", None, trouble)
                    return
                self._days[policy] = ComparedDay(policy, "reading")
                other = await _read_aside(lambda: self._open_day(out))
        except Exception as error:
            self._days[policy] = ComparedDay(policy, "failed", None, str(error))
            raise
        if not other.record.at_s:
            text = other.record.trouble or "the simulated day has no events"
            self._days[policy] = ComparedDay(policy, "failed", None, text)
            return
        self._others[policy] = other
        sums = (self._sums(day) for day in (self._recorded, other))
        self._days[policy] = ComparedDay(policy, "ready", 100, other.record.trouble, *sums)

    def _sums(self, day: RecordedSource) -> list[DaySums]:
        return [day.sums[_moment(day, at_s)] for at_s in self._recorded.elapsed_s]

    async def _simulate(self, policy: str, out: Path) -> str:
        """Run the simulation's process to its end; return the reason if it failed, "" if it
        wrote the decisions of the simulated day."""
        process = await asyncio.create_subprocess_exec(
            *_at_leisure(self._command(policy, out)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        said = asyncio.create_task(process.stderr.read())
        try:
            async with asyncio.timeout(self._longest_s):
                while process.returncode is None:
                    self._look(policy, out)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), LOOK_S)
        except TimeoutError:
            text = f"took longer than {self._longest_s:g} s"
            return f"{text}: weft simulate --decisions-from has no such limit"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            lines = (await said).decode(errors="replace").splitlines()
        if process.returncode:
            return lines[-1] if lines else f"the simulation ended with code {process.returncode}"
        return ""

    def _look(self, policy: str, out: Path) -> None:
        """Estimate the simulation's progress from the size of the file written so far."""
        written = out.stat().st_size if out.exists() else 0
        percent = min(99, 100 * written // self._record_bytes) if self._record_bytes else None
        self._days[policy] = ComparedDay(policy, "simulating", percent)


async def _read_aside(read: Callable[[], RecordedSource]) -> RecordedSource:
    """Read a day in a thread that neither a cancellation of this call nor the end of the process
    waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[RecordedSource] = loop.create_future()

    def tell(day: RecordedSource | None, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits for it any more
        if day is not None:
            done.set_result(day)
        elif error is not None:
            done.set_exception(error)

    def work() -> None:
        day, wrong = None, None
        try:
            day = read()
        except Exception as error:
            wrong = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, day, wrong)

    threading.Thread(target=work, name="weft-compare", daemon=True).start()
    return await done


def _at_leisure(words: Sequence[str]) -> Sequence[str]:
    """Return the command run at a low priority, if the machine has `nice`."""
    nice = shutil.which("nice")
    return words if nice is None else (nice, "-n", "10", *words)


def _moment(day: RecordedSource, at_s: float) -> int:
    """Return the number of the day's last moment at or before this time."""
    return max(0, bisect_right(day.elapsed_s, at_s) - 1)
