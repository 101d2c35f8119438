"""Work that a leader does in the background: one run at a time, and nothing due is forgotten."""

import asyncio
import logging

import pytest

from weft.cluster.control.leadership import LeaderTask


class Chores:
    """Work whose runs are counted; `held` stops it in the middle, `fails` breaks it off."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.done: list[str] = []
        self.runs, self.fails = 0, False
        self.begun, self.held = asyncio.Event(), asyncio.Event()
        self.held.set()
        self.task = LeaderTask(self._work, lambda: self.due, "chores")

    async def _work(self) -> None:
        self.runs += 1
        self.begun.set()
        await self.held.wait()
        if self.fails:
            raise ValueError("broken")
        while self.due:
            self.done.append(self.due.pop(0))

    def add(self, name: str) -> None:
        self.due.append(name)
        self.task.start()

    async def rest(self) -> None:
        while self.task.runs:
            await asyncio.sleep(0)


async def test_one_run_does_what_becomes_due_meanwhile() -> None:
    chores = Chores()
    chores.task.start()
    assert not chores.task.runs, "nothing is due"
    chores.held.clear()
    chores.add("a")
    await chores.begun.wait()
    chores.add("b")
    chores.held.set()
    await chores.rest()
    assert (chores.runs, chores.done) == (1, ["a", "b"])


async def test_what_becomes_due_after_a_runs_last_check_begins_another() -> None:
    """A run that has ended is known to have ended only a turn of the event loop later."""
    chores = Chores()
    chores.add("a")
    while not chores.done:
        await asyncio.sleep(0)
    assert chores.task.runs
    chores.add("b")
    await chores.rest()
    assert (chores.runs, chores.done) == (2, ["a", "b"])


async def test_a_run_that_fails_is_logged_and_begun_again_only_when_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chores = Chores()
    chores.fails = True
    with caplog.at_level(logging.ERROR):
        chores.add("a")
        await chores.rest()
    assert caplog.messages == ["chores: this is a mistake in Weft"]
    assert chores.runs == 1
    chores.fails = False
    chores.task.start()
    await chores.rest()
    assert chores.done == ["a"]


async def test_a_stopped_run_is_not_begun_again() -> None:
    chores = Chores()
    chores.held.clear()
    chores.add("a")
    await chores.begun.wait()
    await chores.task.stop()
    await chores.rest()
    assert (chores.runs, chores.done) == (1, [])
