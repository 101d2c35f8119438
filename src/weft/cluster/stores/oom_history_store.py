"""Stores OOM history and learnt peaks in a ConfigMap, for the next process.

  lead ──▶ read ──OomHistoryLearnt──▶ engine ──Learnt──▶ write changes ──▶ ConfigMap
    ▲                                                                        │
    └── another process wrote (409), or no answer came: retry ◀──────────────┘

There is one key per workload that ran out of GPU memory, and one key for the peak usage of all
other pods, which is written at most once a minute. Every process learns from its own watch; only
the leader writes. After a conflict both versions are merged, as OOM history only grows. An entry
that cannot be read is left unchanged, and counted. While the API server does not answer, the
history is only in memory."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from weft.cluster.stores import peak_usage
from weft.cluster.stores.configmap_store import StoredValue
from weft.core.engine import Engine, Event, Learnt, OomHistoryLearnt, OomRecord, PeakLearnt
from weft.core.engine.oom_history import MOST, OomCharge
from weft.core.explain.sentences import charged_in_words
from weft.kube.client import ApiClient
from weft.kube.clock import rfc3339_micro
from weft.kube.configmap import OwnConfigMap
from weft.model.ceilings import MOST_GPU_MIB

log = logging.getLogger("weft.cluster")

_PEAKS = peak_usage.KEY
_PLAIN = re.compile(r"[a-z0-9][-.A-Za-z0-9]{0,199}")
_NOT_PLAIN = re.compile(r"[^-.A-Za-z0-9]+")


class OomHistoryEntry(msgspec.Struct, frozen=True):
    """One value of the ConfigMap, as JSON. `at` is the time of the workload's last OOM event."""

    workload: str
    times: int
    least_mib: int
    ends: tuple[str, ...] = ()
    at: str = ""

    @property
    def oom_record(self) -> OomRecord:
        """The entry's OOM record, as the engine uses it."""
        return OomRecord(self.times, self.least_mib, self.ends)


def key_of(workload: str) -> str:
    """Return the workload's key, made of the characters that a ConfigMap allows. No two workloads
    share a key."""
    plain = workload.replace("/", ".")
    if workload.count("/") == 2 and _PLAIN.fullmatch(plain):
        return plain
    tail = sha256(workload.encode()).hexdigest()[:16]
    return f"{_NOT_PLAIN.sub('-', plain)[:100].lstrip('.')}_{tail}"


def entry_of(key: str, text: str) -> OomHistoryEntry:
    """Return the entry under this key; `msgspec.DecodeError` if Weft did not write it."""
    try:
        entry = msgspec.json.decode(text, type=OomHistoryEntry)
    except RecursionError:
        raise msgspec.DecodeError("is nested too deeply") from None
    if key != key_of(entry.workload):
        raise msgspec.ValidationError(f"is about another workload, {entry.workload[:100]!r}")
    if entry.times < 0 or not 0 <= entry.least_mib <= MOST_GPU_MIB:
        raise msgspec.ValidationError(
            f"{entry.times} times or {entry.least_mib} MiB is out of range"
        )
    return entry


class OomHistoryStore(StoredValue):
    """Stores one engine's OOM history and peaks; `unreadable` are the keys that could not be
    read."""

    subject = "the out-of-memory history is"
    gather_s = 0.2  # a job's pods fail together

    def __init__(
        self,
        client: ApiClient,
        config_map: OwnConfigMap | None,
        engine: Engine,
        handle: Callable[[Event], object],
        may_write: Callable[[float], bool] | None,
    ) -> None:
        super().__init__(client, config_map, may_write)
        self.unreadable: set[str] = set()
        self._known, self._handle = engine.oom_history.known, handle
        self._due: dict[str, str] = {}  # workload: time of its last OOM that is not stored yet
        self._peaks, self._peaks_due = engine.peaks.known, False
        self._peaks_news = asyncio.Event()

    def learnt(self, command: Learnt | PeakLearnt) -> None:
        """Note what a command of the engine says was newly learnt; it is stored if this process
        leads."""
        if isinstance(command, PeakLearnt):
            self._peaks_news.set()
            return
        workload = command.workload
        self._due[workload] = rfc3339_micro(self._clock.wall())
        self._news.set()
        oom_record = self._known.get(workload, OomRecord(0, 0))
        charge = charged_in_words(OomCharge(workload, oom_record.times, oom_record.least_mib))
        log.info("a pod ran out of GPU memory: its workload's next pod is %s", charge)

    def _jobs(self, config_map: OwnConfigMap) -> list[Coroutine[None, None, None]]:
        return [self._run(config_map), self._remind()]

    def _last(self) -> None:
        self._peaks_due |= self._peaks_news.is_set()

    async def _remind(self) -> None:
        """Mark peaks as due `EVERY_S` after they were learnt, since many are learnt in a row."""
        while True:
            await self._peaks_news.wait()
            await self._clock.sleep(peak_usage.EVERY_S)
            self._peaks_news.clear()
            self._peaks_due = True
            self._news.set()

    def _is_due(self) -> bool:
        return bool(self._due) or self._peaks_due

    # --- the stored entries ---

    async def _read(self, config_map: OwnConfigMap) -> None:
        self._stored = await config_map.read()
        entries = sorted(self._entries(self._stored), key=lambda entry: entry.at)
        oom_history = {entry.workload: entry.oom_record for entry in entries}
        peaks = self._stored_peaks(self._stored)
        for workload, known_record in self._known.items():
            stored = oom_history.get(workload)
            if stored is None or stored.joined(known_record) != stored:
                self._due.setdefault(workload, rfc3339_micro(self._clock.wall()))
        if oom_history or peaks:
            self._handle(OomHistoryLearnt(oom_history, peaks))
        self._peaks_due |= bool(self._peaks) and self._peaks_text() != self._stored.get(_PEAKS, "")

    def _stored_peaks(self, data: Mapping[str, str]) -> tuple[PeakLearnt, ...]:
        """Return the stored peaks; () if their key cannot be read, which is logged. The key is
        overwritten once peaks are learnt again."""
        try:
            peaks = peak_usage.decode(data[_PEAKS]) if _PEAKS in data else ()
        except msgspec.DecodeError as error:
            self._cannot_read(_PEAKS, error)
            return ()
        self.unreadable.discard(_PEAKS)
        return peaks

    def _peaks_text(self) -> str:
        return peak_usage.encode(self._peaks, self._stored or {})

    def _cannot_read(self, key: str, error: msgspec.DecodeError) -> None:
        """Log an unreadable entry once for as long as it exists."""
        if key not in self.unreadable and self._config_map is not None:
            self.unreadable.add(key)
            what = "holds no peaks" if key == _PEAKS else "is not a valid entry and is ignored"
            where = self._config_map
            log.warning("%s/%s: key %s %s: %s", where.namespace, where.name, key, what, error)

    def _entries(self, data: Mapping[str, str]) -> Iterator[OomHistoryEntry]:
        self.unreadable &= data.keys()
        for key, text in data.items():
            if key == _PEAKS:
                continue
            try:
                entry = entry_of(key, text)
                self.unreadable.discard(key)
                yield entry
            except msgspec.DecodeError as error:
                self._cannot_read(key, error)

    async def _write(self, config_map: OwnConfigMap) -> None:
        """Write the changes that are due; entries of `_due` added meanwhile stay due."""
        taken, peaks_due = dict(self._due), self._peaks_due
        changes = self._changes(taken) | (self._new_peaks() if peaks_due or taken else {})
        self._peaks_due = False
        try:
            if changes:
                self._stored = await config_map.write(changes)
                self.counts["written"] += 1
        except BaseException:
            self._peaks_due |= peaks_due
            raise
        self._due = {name: at for name, at in self._due.items() if taken.get(name) != at}

    def _new_peaks(self) -> dict[str, str | None]:
        text, before = self._peaks_text(), (self._stored or {}).get(_PEAKS, "")
        return {_PEAKS: text or None} if text != before else {}

    def _changes(self, due: Mapping[str, str]) -> dict[str, str | None]:
        """Return the keys to write with their texts, and the oldest keys, with None, to delete so
        that there are at most `MOST`."""
        stored = self._stored or {}
        entries = {key_of(entry.workload): entry for entry in self._entries(stored)}
        changes: dict[str, str | None] = {}
        for workload, at in due.items():
            key, oom_record = key_of(workload), self._known.get(workload)
            if oom_record is None or key in self.unreadable:
                continue
            before = entries.get(key)
            if before is not None and before.oom_record.joined(oom_record) == before.oom_record:
                continue
            both = before.oom_record.joined(oom_record) if before is not None else oom_record
            entries[key] = OomHistoryEntry(workload, both.times, both.least_mib, both.ends, at)
            changes[key] = _text(entries[key], stored.get(key, "{}"))
        oldest = sorted(entries, key=lambda key: entries[key].at)
        changes |= dict.fromkeys(oldest[: max(0, len(entries) - MOST)])
        return {key: text for key, text in changes.items() if text is not None or key in stored}


def _text(entry: OomHistoryEntry, before: str) -> str:
    """Return the entry as text, keeping unknown fields that a later version of Weft may have
    written."""
    fields: dict[str, Any] = msgspec.json.decode(before)
    return msgspec.json.encode({**fields, **msgspec.to_builtins(entry)}).decode()
