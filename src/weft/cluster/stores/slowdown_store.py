"""Stores slowdowns observed on shared GPUs in a ConfigMap: bans outlive the process.

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
"""Between two writes of what was seen; only bans are in a hurry."""
MOST_BYTES = 900_000
"""A ConfigMap may have 1 MiB, all its keys together."""


class SlowdownStore(StoredValue):
    """Keeps one `experience`; `unreadable`: how often what was there was none of ours.

    `adopted` is called when the experience is another one than before, or over another base; it
    says whether policies were told.
    """

    subject = "what is observed is"
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
        """Other predictions. Whether policies were told them, with what was observed over them."""
        self._base = base
        self.experience.rebase(base)
        return self._adopted()

    def now_ns(self) -> int:
        """Return the time that outlives processes: nanoseconds since 1970."""
        return int(self._clock.wall().timestamp() * 1e9)

    def changed(self) -> None:
        """Something was observed: to be kept, soon."""
        self._due = True
        self._news.set()

    def soon(self) -> None:
        """Something that is to be kept at once, and tried again until it is."""
        self.changed()
        self._hurry.set()

    def _is_due(self) -> bool:
        return self._due

    async def _pause(self, seconds: float) -> None:
        """So long, or until something is in a hurry."""
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
        """Return the stored record joined with what this process saw; None if it cannot be read."""
        now_ns = self.now_ns()
        try:
            both = joined(self.experience.kept(now_ns), observed_slowdown.decode(text), now_ns)
            return ObservedSlowdowns(self._base, both)
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            self.unreadable += 1
            self._due = True
            where, why = f"{store.namespace}/{store.name}: key {KEY}", shown(str(error))
            log.warning("%s cannot be read and is written over (%s): %s", where, why, shown(text))
            return None

    async def _write(self, config_map: OwnConfigMap) -> None:
        """Write; what is seen meanwhile is due again."""
        text = fitting(self.experience.kept(self.now_ns()))
        if text != (self._stored or {}).get(KEY, ""):
            self._stored = await config_map.write({KEY: text})
            self.counts["written"] += 1
        self._due = fitting(self.experience.kept(self.now_ns())) != text


def fitting(record: observed_slowdown.ObservationRecord) -> str:
    """As much of it as has room: bans before pairs, and the last seen before others."""
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
    """Both records as one; of a pair what was seen here counts, of a ban the longer one."""
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
