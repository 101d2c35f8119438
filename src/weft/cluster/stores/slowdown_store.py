"""Stores slowdowns observed on shared GPUs in a ConfigMap, so that bans (applications that are kept
apart for a while after an eviction) outlive the process.

  lead ──▶ read ──▶ experience ──changed──▶ write, once a minute ──▶ ConfigMap, one key
    ▲                   │ a ban ──soon──▶ write, immediately             │
    └── another process wrote (409), or no answer came: retry ◀──────────┘

Only the leader observes, and only the leader writes. A stored value that cannot be read is logged,
counted and overwritten, as it can be observed again. While the API server does not answer,
observations are only in memory."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from weft.cluster.stores.configmap_store import StoredValue
from weft.interference import observed_slowdown
from weft.interference.observed_slowdown import Ban, ObservedSlowdowns
from weft.kube.client import ApiClient
from weft.kube.configmap import OwnConfigMap
from weft.model.interference_table import InterferenceTable
from weft.telemetry.meaning.answers import shown

log = logging.getLogger("weft.cluster")

KEY = "observed.v1.json"
EVERY_S = 60.0
"""Seconds between two writes of observations; only bans are urgent."""
MOST_BYTES = 900_000
"""Size limit of the stored value in bytes; a ConfigMap may have 1 MiB, all its keys together."""


class SlowdownStore(StoredValue):
    """Stores the observed slowdowns (`experience`); `unreadable` counts stored values that could
    not be read.

    `adopted` is called when `experience` or its predictions were replaced; it returns True if
    policies received the result."""

    subject = "the observed slowdowns are"
    gather_s = EVERY_S

    def __init__(
        self,
        client: ApiClient,
        store: OwnConfigMap | None,
        base: InterferenceTable,
        may_write: Callable[[float], bool] | None,
        adopted: Callable[[], bool],
    ) -> None:
        super().__init__(client, store, may_write)
        self.experience = ObservedSlowdowns(base)
        self.unreadable = 0
        self._base, self._adopted = base, adopted
        self._due = False
        self._hurry = asyncio.Event()

    def rebase(self, base: InterferenceTable) -> bool:
        """Replace the predictions that observations are combined with; return True if policies
        received the result."""
        self._base = base
        self.experience.rebase(base)
        return self._adopted()

    def now_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since 1970, which stays valid after a
        restart."""
        return int(self._clock.wall().timestamp() * 1e9)

    def changed(self) -> None:
        """Note an observation, to be stored with the next write."""
        self._due = True
        self._news.set()

    def soon(self) -> None:
        """Note a change to be stored immediately, and retried until it is stored."""
        self.changed()
        self._hurry.set()

    def _is_due(self) -> bool:
        return self._due

    async def _pause(self, seconds: float) -> None:
        """Wait this long, or until a change is urgent."""
        either = [
            asyncio.ensure_future(self._clock.sleep(seconds)),
            asyncio.ensure_future(self._hurry.wait()),
        ]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in either:
                waiting.cancel()
        self._hurry.clear()

    async def _read(self, config_map: OwnConfigMap) -> None:
        self._stored = await config_map.read()
        text = self._stored.get(KEY, "")
        experience = self._understood(config_map, text) if text else None
        if experience is not None:
            self.experience = experience
            self._due = True
            self._adopted()

    def _understood(self, store: OwnConfigMap, text: str) -> ObservedSlowdowns | None:
        """Return the stored record joined with this process's observations; None if it cannot be
        read."""
        now_ns = self.now_ns()
        try:
            both = joined(self.experience.kept(now_ns), observed_slowdown.decode(text), now_ns)
            return ObservedSlowdowns(self._base, both)
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            self.unreadable += 1
            self._due = True
            where, why = f"{store.namespace}/{store.name}: key {KEY}", shown(str(error))
            log.warning("%s cannot be read and is overwritten (%s): %s", where, why, shown(text))
            return None

    async def _write(self, config_map: OwnConfigMap) -> None:
        """Write the observations; those made meanwhile are due again."""
        text = fitting(self.experience.kept(self.now_ns()))
        if text != (self._stored or {}).get(KEY, ""):
            self._stored = await config_map.write({KEY: text})
            self.counts["written"] += 1
        self._due = fitting(self.experience.kept(self.now_ns())) != text


def fitting(record: observed_slowdown.ObservationRecord) -> str:
    """Return as much of the record as fits, encoded: bans before pairs, recently seen before older
    ones."""
    text = observed_slowdown.encode(record)
    while len(text.encode()) > MOST_BYTES and (record.pairs or record.bans):
        pairs, bans = record.pairs, record.bans
        if pairs:
            record = msgspec.structs.replace(record, pairs=pairs[len(pairs) // 8 + 1 :])
        else:
            record = msgspec.structs.replace(record, bans=bans[len(bans) // 8 + 1 :])
        text = observed_slowdown.encode(record)
    return text


def joined(
    mine: observed_slowdown.ObservationRecord,
    stored: observed_slowdown.ObservationRecord,
    now_ns: int,
) -> observed_slowdown.ObservationRecord:
    """Join two records: for a pair in both, this process's observation counts; for a ban in both,
    the longer one."""
    own_pairs = {(pair.gpu_model, pair.target, pair.others): pair for pair in mine.pairs}
    stored_pairs = {(pair.gpu_model, pair.target, pair.others): pair for pair in stored.pairs}
    pairs = (
        *(pair for key, pair in stored_pairs.items() if key not in own_pairs),
        *own_pairs.values(),
    )
    bans: dict[tuple[str, str, str], Ban] = {}
    for ban in (*stored.bans, *mine.bans):
        key = (ban.gpu_model, ban.application, ban.other)
        before = bans.get(key)
        if ban.until_ns > now_ns and (before is None or before.until_ns < ban.until_ns):
            bans[key] = ban
    return observed_slowdown.ObservationRecord(pairs, tuple(bans.values()))
