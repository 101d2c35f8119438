"""What was observed of pods that share GPUs, kept in a ConfigMap: bans outlive the process.

    lead ──▶ read ──▶ experience ──changed──▶ write, once a minute ──▶ ConfigMap, one key
               ▲          │ a ban ──soon──▶ write, at once
               └── somebody else wrote (409), or no answer came: later, again

Only the leader observes, and only the leader writes. What is there and cannot be read is told,
counted and written over: it would be observed again. Without an API that answers, memory has to do.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from weft.framework.interference import Interference
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.errors import ApiError, ConflictError, LostError, NotSentError
from weft.kube.kept import Kept
from weft.signals.interference import observed
from weft.signals.interference.observed import Ban, Experience
from weft.signals.telemetry.answers import shown

log = logging.getLogger("weft.live")

KEY = "observed.v1.json"
EVERY_S = 60.0
"""Between two writes of what was seen; only bans are in a hurry."""
MOST_BYTES = 900_000
"""A ConfigMap may have 1 MiB, all its keys together."""
_FIRST_DELAY_S, _MOST_DELAY_S = 1.0, 60.0
_BROKEN = (ApiError, LostError, NotSentError, msgspec.DecodeError, RecursionError)


class Remembering:
    """Keeps one `experience`. Nothing is kept where `store` is None.

    `counts`: writes by what became of them; `unreadable`: how often what was there was none of
    ours. `adopted` is called when the experience is another one than before.
    """

    def __init__(
        self, client: ApiClient, store: Kept | None, base: Interference,
        may_write: Callable[[float], bool] | None = None,
    ) -> None:  # fmt: skip
        self.experience = Experience(base)
        self.counts = {"written": 0, "conflict": 0, "failed": 0}
        self.unreadable = 0
        self.adopted: Callable[[], None] = lambda: None
        self._store, self._base, self._clock = store, base, client.clock
        self._may_write = may_write
        self._backoff = Backoff(_FIRST_DELAY_S, _MOST_DELAY_S, client.rng)
        self._stored: str | None = None
        self._due = False
        self._writing = asyncio.Lock()
        self._news, self._hurry = asyncio.Event(), asyncio.Event()
        self._failing = ""
        self._task: asyncio.Task[None] | None = None

    def now_ns(self) -> int:
        """The time that outlives processes: nanoseconds since 1970."""
        return int(self._clock.wall().timestamp() * 1e9)

    def changed(self) -> None:
        """Something was observed: to be kept, soon."""
        self._due = True
        self._news.set()

    async def lead(self) -> None:
        """Take over what there is, as far as it can be read now; write from now on."""
        if self._store is None:
            return
        try:
            await self._read(self._store)
        except _BROKEN as error:
            self._fails(error)
        self._task = asyncio.create_task(self._run(self._store))

    def soon(self) -> None:
        """Something that is to be kept at once, and tried again until it is."""
        self.changed()
        self._hurry.set()

    async def stop(self) -> None:
        """Write what is left, if that goes at once, and then no more."""
        task, self._task = self._task, None
        if task is None or self._store is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not await self._try(self._store):  # what was under way may have been written
            await self._try(self._store)

    async def _run(self, store: Kept) -> None:
        while True:
            self._news.clear()
            self._hurry.clear()
            while not await self._try(store):
                await self._pause(self._backoff.next_s())
                self._hurry.clear()
            self._backoff.reset()
            await self._news.wait()
            await self._pause(EVERY_S)

    async def _pause(self, seconds: float) -> None:
        """So long, or until something is in a hurry."""
        either = [
            asyncio.ensure_future(self._clock.sleep(seconds)),
            asyncio.ensure_future(self._hurry.wait()),
        ]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in either:
                one.cancel()

    async def _try(self, store: Kept) -> bool:
        """Read where that failed before, and write what is due; whether all of it is stored now."""
        async with self._writing:
            if self._stored is not None and not self._due:
                return True
            if self._may_write is not None and not self._may_write(2 * store.timeout_s):
                return False
            try:
                if self._stored is None:
                    await self._read(store)
                await self._write(store)
            except ConflictError:
                self.counts["conflict"] += 1
                self._stored = None
                return False
            except _BROKEN as error:
                self._fails(error)
                self._stored = None  # it may have been written
                return False
        if self._failing:
            log.info("what is observed is kept again")
        self._failing = ""
        return True

    def _fails(self, error: Exception) -> None:
        """Told once while it stays the same."""
        self.counts["failed"] += 1
        if str(error) != self._failing and self._store is not None:
            self._failing = str(error)
            where = f"{self._store.namespace}/{self._store.name}"
            log.warning("what is observed is not kept in %s for now: %s", where, error)

    async def _read(self, store: Kept) -> None:
        text = (await store.read()).get(KEY, "")
        self._stored = text
        found = self._understood(store, text) if text else None
        if found is not None:
            self.experience = found
            self._due = True
            self.adopted()

    def _understood(self, store: Kept, text: str) -> Experience | None:
        """What is there together with what this process saw; None where nobody can read it."""
        now_ns = self.now_ns()
        try:
            both = joined(self.experience.kept(now_ns), observed.decode(text), now_ns)
            return Experience(self._base, both)
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            self.unreadable += 1
            self._due = True
            log.warning(
                "%s/%s: key %s cannot be read and is written over (%s): %s",
                store.namespace, store.name, KEY, shown(str(error)), shown(text),
            )  # fmt: skip
            return None

    async def _write(self, store: Kept) -> None:
        """What is seen meanwhile is due again."""
        text = fitting(self.experience.kept(self.now_ns()))
        if text != self._stored:
            self._stored = (await store.write({KEY: text})).get(KEY, "")
            self.counts["written"] += 1
        self._due = fitting(self.experience.kept(self.now_ns())) != text


def fitting(kept: observed.Kept) -> str:
    """As much of it as has room: bans before pairs, and the last seen before others."""
    text = observed.encode(kept)
    while len(text.encode()) > MOST_BYTES and (kept.pairs or kept.bans):
        pairs, bans = kept.pairs, kept.bans
        if pairs:
            kept = msgspec.structs.replace(kept, pairs=pairs[len(pairs) // 8 + 1 :])
        else:
            kept = msgspec.structs.replace(kept, bans=bans[len(bans) // 8 + 1 :])
        text = observed.encode(kept)
    return text


def joined(mine: observed.Kept, stored: observed.Kept, now_ns: int) -> observed.Kept:
    """What both know; of one pair what was seen here counts, of one ban the longer one."""
    here = {(one.gpu_model, one.victim, one.others): one for one in mine.pairs}
    there = {(one.gpu_model, one.victim, one.others): one for one in stored.pairs}
    pairs = (*(one for key, one in there.items() if key not in here), *here.values())
    bans: dict[tuple[str, str, str], Ban] = {}
    for ban in (*stored.bans, *mine.bans):
        key = (ban.gpu_model, ban.one, ban.other)
        before = bans.get(key)
        if ban.until_ns > now_ns and (before is None or before.until_ns < ban.until_ns):
            bans[key] = ban
    return observed.Kept(pairs, tuple(bans.values()))
