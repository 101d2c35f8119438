"""Computes the memory that residents need of their GPU, and what they leave idle. Pure.

    hold(p)  = while pod p warms up: what it requested. A pod warms up until it has been bound for
               `warm_s`, and its memory has once changed by less than `STABLE_PART` for `stable_s`
               (`WarmUp`)
             = once p is warm: the 95th percentile of its own series; without a series its part, by
               requests, of what pods without series use of the device
    need(g)  = need of GPU g.  If its metrics are
               FRESH: max(Σ hold, used now + Σ over warming pods of max(0, hold − seen))
               STALE: max(last used, Σ requested)      MISSING: Σ requested
    idle(p)  = what p requested beyond its hold, reduced so that need(g) is left for all of g's pods

If a pod was placed by what similar pods use, that expected memory replaces its request while it
warms up, and afterwards its hold is at least that. A pod that used more than expected is treated as
unlike them.

A process that has just started does not know which pods had warmed up, nor what was expected of
them. If a pod was there before, is not found warm, and has been watched for less than `watch_s`,
its GPU is STALE at best: while needs are unknown, no memory is lent and no pod evicted.

Nothing is idle where a number is missing, old, or cannot be true; of a pod in flight (not known to
be bound); of a latency-critical pod; or on a GPU whose metrics contradict the ledger or each other.
What a GPU uses beyond all requests there (`beyond_mib`) is not idle either: harvesting does not
touch it.

`ResidentMemory` keeps its state from one poll to the next: each resident's own memory, a row in a
`MetricWindow` with the slots of the GPUs' window, and since when the resident has been observed.

`PeakWatch` finds the most memory that pods used, for pods watched from their start without a gap: a
poll counts if the GPU's memory is FRESH and, once the pod is warm, its own use was reported. After
one poll that does not count, the pod's peak stays unknown. Only a whole run says what the next run
needs, and the engine knows how the pod ends."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from weft.core.engine.harvest import BEYOND, NEED
from weft.core.framework.signals import (
    FRESH,
    MISSING,
    STALE,
    Bytes,
    Floats,
    SignalsSnapshot,
    SignalsView,
)
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import RESERVE_PERMILLE, Bools, Ints, LedgerTable
from weft.model.metric import Metric
from weft.model.request import LATENCY_CRITICAL
from weft.telemetry.feed.doubts import contradicted
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.join import PodSamples

STABLE_PART = 0.02
WATCH_S = 120.0
"""Seconds within which a pod that has warmed up is recognised as warm, and a pod that is warming up
becomes warm."""
PEAK = 0.95
LATELY = 3
"""A pod's series is used if at least one of its last `LATELY` samples arrived: a single lost sample
says nothing about the pod. The freshness of the pod's GPU limits how old these samples may be."""
PAUSE_S = 60.0
"""A pod bound longer ago than this many seconds was not watched from its start, even if the last
poll was before its binding."""
USED = Metric.MEMORY_USED_MIB
_LOST = -1

Gpu: TypeAlias = tuple[str, int]
"""The node's name and the GPU's index on it; they identify a GPU even when its row changes."""


class WarmUp(NamedTuple):
    """Time for which a pod is taken to need what it requested: at least `warm_s` seconds from its
    binding, and until its memory was stable for `stable_s` seconds once."""

    warm_s: float = 60.0
    stable_s: float = 20.0

    @property
    def watch_s(self) -> float:
        """Seconds to watch a pod: `WATCH_S`, or longer if pods take longer to warm up."""
        return max(WATCH_S, 2.0 * self.warm_s, self.warm_s + self.stable_s)


USUAL = WarmUp()


class ResidentRows(NamedTuple):
    """P pods on GPUs, a row for each pod and GPU.

    `gpu` is the GPU's row, `asked_mib` the memory that the pod holds of it, `age_s` how long the
    pod has been bound (NaN or negative: in flight), `lends`: its idle memory may be lent, `warmed`:
    it was found warm before. `used_mib` [P, T] is the pod's own series, NaN without one.
    `expected_mib` is the memory for which it was placed (None: all were placed by `asked_mib`).
    `watched_s` is how long it has been watched, infinite if since its binding (None: all were)."""

    gpu: Ints
    asked_mib: Ints
    age_s: Floats
    lends: Bools
    warmed: Bools
    used_mib: Floats
    expected_mib: Ints | None = None
    watched_s: Floats | None = None


class GpuMemory(NamedTuple):
    """G GPUs: size [G], used memory [G, T] (NaN where unknown), and the newest sample's
    freshness."""

    total_mib: Ints
    used_mib: Floats
    freshness: Bytes


class MemoryNeeds(NamedTuple):
    """Results of `measure`. `hold_mib` and `idle_mib` [P], whole MiB; `warm` [P]: the pod has
    warmed up.

    `most_mib` [P] is the largest of the pod's own series, −1 without a series that can be relied
    on. `need_mib` and `beyond_mib` [G]; `freshness` [G] is MISSING also where metrics contradict,
    and STALE also where a pod has not been watched for long."""

    hold_mib: Ints
    idle_mib: Ints
    warm: Bools
    most_mib: Ints
    need_mib: Ints
    beyond_mib: Ints
    freshness: Bytes


def measure(
    residents: ResidentRows, cards: GpuMemory, sample_age_s: Floats, warm_up: WarmUp = USUAL
) -> MemoryNeeds:
    """Compute the memory that pods and GPUs need, and what pods leave idle. `sample_age_s` [T]: age
    of each sample, oldest first."""
    gpu, gpus = residents.gpu, len(cards.total_mib)
    asked = residents.asked_mib.astype(np.float64)
    own, has_own = _own_series(residents, cards, sample_age_s)
    rest = _rest_series(residents, cards, own, has_own)
    since = sample_age_s[None, :] <= residents.age_s[:, None]
    warm = _warm(residents, rest, since, sample_age_s, warm_up)
    fresh = _believed(residents, cards, own, has_own, warm_up.warm_s)
    fresh = _watched(residents, warm, fresh, warm_up.watch_s)
    part = np.maximum(_peak(own), _last(own))
    part = np.where(has_own, part, _pro_rata(residents, rest, warm & ~has_own, sample_age_s))
    most = np.where(has_own, np.nan_to_num(own).max(axis=1, initial=0.0), -1.0)
    will = _expected(residents, most, fresh)
    measured = warm & np.isfinite(part) & (fresh[gpu] == FRESH)
    part = np.where(will < asked, np.fmax(part, will), part)
    part = np.where(residents.lends, part, np.fmax(part, asked))
    hold = np.ceil(np.where(measured, part, np.where(warm, asked, will)))
    promised = _per_gpu(gpu, asked, gpus)
    missing = _still_to_come(residents, rest, hold, own, (has_own, warm))
    now = np.nan_to_num(_last(cards.used_mib))
    need = np.maximum(_per_gpu(gpu, hold, gpus), np.ceil(now + missing))
    need = np.where(fresh == FRESH, need, promised)
    need = np.where(fresh == STALE, np.maximum(promised, np.ceil(now)), need)
    idle = _share_out(gpu, np.maximum(0.0, asked - hold), promised - need)
    amounts = hold, np.ceil(most), need, np.maximum(0, need - promised)
    hold_mib, most_mib, need_mib, beyond_mib = (amount.astype(np.int64) for amount in amounts)
    return MemoryNeeds(hold_mib, idle, warm, most_mib, need_mib, beyond_mib, fresh)


# --- the parts, in the order of the module's docstring ---


def _own_series(residents: ResidentRows, cards: GpuMemory, age_s: Floats) -> tuple[Floats, Bools]:
    """Return each pod's own series since it was bound, MiB, and a mask of series that can be relied
    on.

    Exporters report 0 for a pod that they do not know, and a stuck exporter reports the whole
    card."""
    since = age_s[None, :] <= residents.age_s[:, None]
    own = np.where(since & (residents.used_mib >= 0), residents.used_mib, np.nan)
    lately = np.isfinite(own[:, -LATELY:]).any(axis=1)
    most = np.nan_to_num(own).max(axis=1, initial=0.0)
    total = cards.total_mib[residents.gpu]
    return own, lately & (most > 0) & (most < total)


def _expected(residents: ResidentRows, most: Floats, fresh: Bytes) -> Floats:
    """Return the memory assumed for each pod, MiB, while its own series does not show how much it
    needs."""
    asked = residents.asked_mib.astype(np.float64)
    if residents.expected_mib is None:
        return asked
    expected = residents.expected_mib.astype(np.float64)
    like = (fresh[residents.gpu] == FRESH) & residents.lends & (most <= expected)
    return np.where(like, np.minimum(asked, expected), asked)


def _rest_series(residents: ResidentRows, cards: GpuMemory, own: Floats, has_own: Bools) -> Floats:
    """Return the memory in use on each GPU by pods without a series of their own, MiB, [G, T]."""
    taken = np.zeros(cards.used_mib.shape)
    np.add.at(taken, residents.gpu[has_own], np.nan_to_num(own[has_own]))
    return np.asarray(np.maximum(0.0, cards.used_mib - taken))


def _warm(
    residents: ResidentRows, rest: Floats, since: Bools, age_s: Floats, warm_up: WarmUp
) -> Bools:
    """Return a mask of warm pods: bound for long enough, and stable once, by the pod's own series
    or, without one, by the GPU's use."""
    old = residents.age_s >= warm_up.warm_s
    warm = np.array(old & residents.warmed, dtype=np.bool_)
    rows = np.flatnonzero(old & ~residents.warmed)
    if len(rows) == 0:
        return warm
    any_own = np.asarray(np.isfinite(residents.used_mib[rows]).any(axis=1))
    series = np.where(any_own[:, None], residents.used_mib[rows], rest[residents.gpu[rows]])
    series = np.where(since[rows], series, np.nan)
    warm[rows[_stable(series, age_s, warm_up.stable_s)]] = True
    return warm


def _stable(series: Floats, age_s: Floats, stable_s: float) -> Bools:
    """Return a mask of the series, [s, T], whose values once differed by less than `STABLE_PART`
    for `stable_s` seconds."""
    begins = np.searchsorted(-age_s, -(age_s + stable_s), side="right") - 1
    lengths = np.arange(len(age_s)) - begins + 1
    was_stable = np.zeros(len(series), dtype=np.bool_)
    for length in np.unique(lengths[begins >= 0]):  # one length if polls come at a steady pace
        first = begins[(begins >= 0) & (lengths == length)]
        stretches = np.lib.stride_tricks.sliding_window_view(series, length, axis=1)
        most = stretches.max(axis=2)[:, first]  # NaN where a sample is missing
        least = stretches.min(axis=2)[:, first]
        with np.errstate(invalid="ignore"):
            stable = (most > 0) & (most - least < STABLE_PART * most)
        was_stable |= stable.any(axis=1)
    return was_stable


def _believed(
    residents: ResidentRows, cards: GpuMemory, own: Floats, has_own: Bools, warm_s: float
) -> Bytes:
    """Return each GPU's freshness, MISSING where used memory contradicts the ledger or the pods'
    own series."""
    gpus = len(cards.total_mib)
    old = residents.age_s >= warm_s
    now = _last(cards.used_mib)
    pods = np.bincount(residents.gpu[old], minlength=gpus)
    wrong = contradicted(now, cards.total_mib, pods)
    own_mib = _per_gpu(residents.gpu, np.where(has_own, _last(own), 0.0), gpus)
    tolerance_mib = cards.total_mib * RESERVE_PERMILLE / 1000
    with np.errstate(invalid="ignore"):
        wrong |= own_mib > now + tolerance_mib
    absent = ~np.isfinite(now) & (cards.freshness == FRESH)
    return np.where(wrong | absent, MISSING, cards.freshness).astype(np.int8)


def _watched(residents: ResidentRows, warm: Bools, fresh: Bytes, watch_s: float) -> Bytes:
    """Return each GPU's freshness; STALE at best if a pod there is not warm and has been watched
    for less than `watch_s`."""
    if residents.watched_s is None:
        return fresh
    short = np.zeros(len(fresh), dtype=np.bool_)
    short[residents.gpu[~warm & (residents.watched_s < watch_s)]] = True
    return np.where(short & (fresh == FRESH), STALE, fresh).astype(np.int8)


def _pro_rata(residents: ResidentRows, rest: Floats, warm: Bools, age_s: Floats) -> Floats:
    """Return, for each pod in the mask `warm` (warm, without a usable series of its own), its
    part, by requests, of the peak of `rest` on its GPU, MiB; NaN for other pods. Only samples
    count that were taken while all these pods and no other pod without a series were on the GPU;
    if it has no such other pod, the peak is at least the last sample."""
    gpus, gpu = len(rest), residents.gpu
    age = np.nan_to_num(residents.age_s, nan=-1.0)
    youngest = np.full(gpus, np.inf)
    np.minimum.at(youngest, gpu[warm], age[warm])
    others = ~warm & ~np.isfinite(residents.used_mib).any(axis=1)
    came = np.full(gpus, -np.inf)
    np.maximum.at(came, gpu[others], age[others])
    during = (age_s[None, :] <= youngest[:, None]) & (age_s[None, :] > came[:, None])
    basis = _peak(np.where(during, rest, np.nan))
    last = rest[:, -1] if rest.shape[1] else np.full(gpus, np.nan)
    basis = np.where(np.isfinite(came), basis, np.maximum(basis, last))
    together = _per_gpu(gpu, np.where(warm, residents.asked_mib, 0).astype(np.float64), gpus)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = basis[gpu] * residents.asked_mib / together[gpu]
    return np.where(warm, part, np.nan)


def _still_to_come(
    residents: ResidentRows, rest: Floats, hold: Floats, own: Floats, state: tuple[Bools, Bools]
) -> Floats:
    """Return the sum, over warming pods, of what they are assumed to need but are not yet seen to
    use, MiB, [G]."""
    has_own, warm = state
    gpu, gpus = residents.gpu, len(rest)
    seen = np.where(has_own, np.nan_to_num(_last(own)), 0.0)
    lacks = np.maximum(0.0, hold - seen)
    lacking = _per_gpu(gpu, np.where(~warm & has_own, lacks, 0.0), gpus)
    settled = _per_gpu(gpu, np.where(warm & ~has_own, hold, 0.0), gpus)
    unseen = _per_gpu(gpu, np.where(~warm & ~has_own, lacks, 0.0), gpus)
    theirs = np.maximum(0.0, np.nan_to_num(_last(rest)) - settled)
    return np.asarray(lacking + np.maximum(0.0, unseen - theirs))


def _share_out(gpu: Ints, idle: Floats, room: Floats) -> Ints:
    """Return the pods' idle memory, MiB, reduced in proportion so that the sum on no GPU exceeds
    `room` [G]."""
    total = _per_gpu(gpu, idle, len(room))
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(total > 0, np.clip(room / total, 0.0, 1.0), 0.0)
    return np.asarray(np.floor(idle * part[gpu] + 1e-6), dtype=np.int64)


def _per_gpu(gpu: Ints, values: Floats, gpus: int) -> Floats:
    return np.asarray(np.bincount(gpu, weights=values, minlength=gpus), dtype=np.float64)


def _last(series: Floats) -> Floats:
    """Return the newest value of each row; NaN if it has none."""
    if series.shape[1] == 0:
        return np.full(len(series), np.nan)
    is_sample = np.isfinite(series)
    newest = series.shape[1] - 1 - is_sample[:, ::-1].argmax(axis=1)
    return np.where(is_sample.any(axis=1), series[np.arange(len(series)), newest], np.nan)


def _peak(series: Floats) -> Floats:
    """Return the value at index int(0.95 n) of each row's n sorted values; NaN for a row without
    values."""
    if series.shape[1] == 0:
        return np.full(len(series), np.nan)
    ordered = np.sort(series, axis=1)  # NaN last
    count = np.isfinite(series).sum(axis=1)
    at = np.minimum((PEAK * count).astype(np.int64), np.maximum(count - 1, 0))
    return np.asarray(ordered[np.arange(len(series)), at])


# --- between the ledger and the rows ---


class ResidentKeys(NamedTuple):
    """The pod (UID) and device row of each row of `ResidentRows`, the memory that the pod requested
    and is expected to need there, and whether its class may lend memory."""

    uids: tuple[str, ...]
    gpu: Ints
    asked_mib: Ints
    expected_mib: Ints
    lends: Bools


def rows_of(table: LedgerTable, holdings: Iterable[Holding]) -> ResidentKeys:
    """Return one row per pod and GPU; several shares of one GPU make one row."""
    asked: dict[tuple[str, int], int] = {}
    expected: dict[tuple[str, int], int] = {}
    lends: dict[tuple[str, int], bool] = {}
    for holding in holdings:
        row = table.row_of.get(holding.placement.node)
        for share in holding.placement.shares if row is not None else ():
            device = table.device_row(row, share.gpu) if row is not None else -1
            if device >= 0:
                key = holding.placement.uid, device
                asked[key] = asked.get(key, 0) + share.memory_mib
                expected[key] = min(asked[key], holding.expected_mib or asked[key])
                lends[key] = holding.placement.job_class != LATENCY_CRITICAL
    devices, columns = [device for _, device in asked], (asked.values(), expected.values())
    asked_mib, expected_mib = (np.array(list(column), dtype=np.int64) for column in columns)
    gpu, uids = np.array(devices, dtype=np.int64), tuple(uid for uid, _ in asked)
    may_lend = np.array(list(lends.values()), dtype=np.bool_)
    return ResidentKeys(uids, gpu, asked_mib, expected_mib, may_lend)


def idle_by_uid(
    table: LedgerTable, holdings: Iterable[Holding], rows: ResidentKeys, idle_mib: Iterable[int]
) -> dict[str, tuple[int, ...]]:
    """Return `SignalsSnapshot.idle_mib`: idle MiB of each share by pod UID, in the order of the
    pod's shares; pods without idle memory are left out."""
    left = {
        (uid, device): int(mib)
        for uid, device, mib in zip(rows.uids, rows.gpu.tolist(), idle_mib, strict=True)
        if mib > 0
    }
    idle = {}
    for holding in holdings if left else ():
        row = table.row_of.get(holding.placement.node)
        parts = []
        for share in holding.placement.shares if row is not None else ():
            key = holding.placement.uid, table.device_row(row, share.gpu) if row is not None else -1
            part = min(left.get(key, 0), share.memory_mib)
            if part:
                left[key] -= part
            parts.append(part)
        if any(parts):
            idle[holding.placement.uid] = tuple(parts)
    return idle


def with_memory_needs(
    before: SignalsSnapshot,
    table: LedgerTable,
    answer: MemoryNeeds,
    idle_mib: dict[str, tuple[int, ...]],
    peaks_mib: dict[str, int] | None = None,
) -> SignalsSnapshot:
    """Return the snapshot with the needs of the table's devices as columns, what pods leave idle,
    and the most memory that pods used (`PeakWatch`).

    The columns are MISSING for GPUs that the table does not have, and for GPUs whose metrics are
    MISSING."""
    gpus = [(node.name, gpu.index) for node in table.nodes for gpu in node.gpus]
    row_of = {gpu: row for row, gpu in enumerate(gpus)}
    rows = np.array([row_of.get(gpu, len(gpus)) for gpu in before.gpus], dtype=np.int64)
    fresh = np.append(answer.freshness, np.int8(MISSING)).take(rows)
    values = []
    for column in (answer.need_mib, answer.beyond_mib):
        padded = np.append(column.astype(np.float64), np.nan).take(rows)
        values.append(np.where(fresh == MISSING, np.nan, padded))
    return msgspec.structs.replace(
        before,
        columns=(*before.columns, NEED, BEYOND),
        values=before.values + np.array(values).tobytes(),
        freshness=before.freshness + np.array([fresh, fresh], dtype=np.int8).tobytes(),
        idle_mib=idle_mib,
        peaks_mib=peaks_mib or {},
    )


# --- from one poll to the next -------------------------------------------------------------------


class PeakWatch:
    """Finds the most memory that pods used, from one poll to the next."""

    def __init__(self, warm_up: WarmUp = USUAL) -> None:
        self._warm_up = warm_up
        self._most: dict[str, int] = {}

    def observe(
        self, uids: Sequence[str], residents: ResidentRows, answer: MemoryNeeds
    ) -> dict[str, int]:
        """Return `SignalsSnapshot.peaks_mib` after this poll: the most memory used so far, MiB, by
        UID; only of warm pods that hold a single GPU and were watched without a gap.

        `uids` are the pods of the residents' rows, `answer` the needs computed for them."""
        fresh = (answer.freshness == FRESH)[residents.gpu].tolist()
        ages, warm = residents.age_s.tolist(), answer.warm.tolist()
        now: dict[str, int] = {}
        peaks: dict[str, int] = {}
        for row, uid in enumerate(uids):
            before = self._most.get(uid)
            if before is None:  # a pod that was bound long ago was not watched from its start
                before = _LOST if ages[row] >= self._warm_up.warm_s else 0
            most = int(answer.most_mib[row])
            unseen = warm[row] and most <= 0
            lost = before == _LOST or not fresh[row] or unseen or uid in now
            now[uid] = _LOST if lost else max(before, most, 0)
            if warm[row] and not lost:
                peaks[uid] = now[uid]
            else:
                peaks.pop(uid, None)
        self._most = now
        return peaks


class ObservedResidents(NamedTuple):
    """Pods that hold GPUs at `now_s`: a copy, which a thread may read while the ledger changes.

    `age_s` is how long ago each row of `keys` was bound, NaN if unknown.
    """

    now_s: float
    table: LedgerTable
    total_mib: Ints
    promised_mib: Ints
    holdings: list[Holding]
    keys: ResidentKeys
    age_s: Floats

    @staticmethod
    def of(ledger: Ledger, now_s: float, bound_s: Mapping[str, float]) -> "ObservedResidents":
        """Copy the ledger's residents. `bound_s` is when pods were bound, by UID."""
        table, holdings = ledger.table, list(ledger.holdings.values())
        keys = rows_of(table, holdings)
        bound = np.array([bound_s.get(uid, np.nan) for uid in keys.uids], dtype=np.float64)
        total, promised = table.device_memory_total.copy(), table.device_memory_promised.copy()
        return ObservedResidents(now_s, table, total, promised, holdings, keys, now_s - bound)


class ResidentMemory:
    """Residents' memory over time, kept from one poll to the next."""

    def __init__(self, samples: int, step_s: float, origin_s: float, warm_up: WarmUp):
        self._window = MetricWindow([USED], 0, samples, step_s, origin_s)
        self._row_of: dict[tuple[str, Gpu], int] = {}
        self._warmed: dict[str, bool] = {}
        self._since: dict[str, float] = {}
        self._observed_s = np.inf
        self._watch, self._warm_up = PeakWatch(warm_up), warm_up
        self._most: dict[str, float] = {}

    def observe(self, residents: ObservedResidents, gpus: tuple[Gpu, ...]) -> None:
        """Give each resident a row; `gpus` are the ledger's devices."""
        keys = residents.keys
        pairs = [(uid, gpus[row]) for uid, row in zip(keys.uids, keys.gpu.tolist(), strict=True)]
        if pairs != [*self._row_of]:
            rows = [self._row_of.get(pair, -1) for pair in pairs]
            self._window.realign(np.array(rows, dtype=np.int64))
            self._row_of = {pair: row for row, pair in enumerate(pairs)}
        self._window.advance(residents.now_s)

    def put(self, samples: Iterable[PodSamples], gpus: tuple[Gpu, ...], now_s: float) -> None:
        """Add samples of residents' own use; samples of other pods, and values that are not finite,
        are ignored."""
        rows = (
            (self._row_of.get((sample.pod, gpus[sample.row]), -1), sample.at_s, sample.value)
            for sample in samples
            if sample.metric is USED
        )
        known = [row for row in rows if row[0] >= 0 and np.isfinite(row[2])]
        if known:
            row, times, values = (np.array(column) for column in zip(*known, strict=True))
            self._window.put(USED, row, times, values, now_s)

    def measure(
        self, made: SignalsSnapshot, window: MetricWindow, residents: ObservedResidents
    ) -> SignalsSnapshot:
        """Return the snapshot `made` with GPUs' needs and pods' idle memory added. `window` has the
        GPUs' samples."""
        table, keys = residents.table, residents.keys
        slots = window.slots()
        used, own = (each.history(USED, slots) for each in (window, self._window))
        ages = np.maximum(0.0, residents.now_s - (window.origin_s + slots * window.step_s))
        older = np.isnan(used).all(axis=1)  # their newest sample is older than the window
        used[older, -1] = window.newest(USED)[0][older]
        fresh = SignalsView(made).over(table, f"{USED}.last")[1]
        warm = np.array([self._warmed.get(uid, False) for uid in keys.uids], dtype=np.bool_)
        watched_s = self._watched_s(residents, fresh)
        rows = ResidentRows(
            keys.gpu,
            keys.asked_mib,
            residents.age_s,
            keys.lends,
            warm,
            own,
            keys.expected_mib,
            watched_s,
        )
        gpus = GpuMemory(residents.total_mib, used, fresh)
        answer = measure(rows, gpus, ages, self._warm_up)
        now_warm = dict(zip(keys.uids, answer.warm.tolist(), strict=True))
        uids = [holding.placement.uid for holding in residents.holdings]
        self._warmed = {uid: now_warm.get(uid, self._warmed.get(uid, False)) for uid in uids}
        most: dict[str, float] = {}
        for uid, mib in zip(keys.uids, np.nan_to_num(own).max(axis=1).tolist(), strict=True):
            most[uid] = max(most.get(uid, 0.0), mib)
        self._most = most  # replaced at once: another thread may ask for a peak
        idle = idle_by_uid(table, residents.holdings, keys, answer.idle_mib)
        peaks = self._watch.observe(keys.uids, rows, answer)
        return with_memory_needs(made, table, answer, idle, peaks)

    def peak_mib(self, uid: str) -> int:
        """Return the most GPU memory that the pod was seen to use within the window, MiB; 0 if
        unknown."""
        return int(np.ceil(self._most.get(uid, 0.0)))

    def _watched_s(self, residents: ObservedResidents, fresh: Bytes) -> Floats:
        """Return how long each row's pod has been watched, in seconds: infinite for pods bound
        between two polls.

        Other pods are watched from the first poll at which their GPU was FRESH; 0 before that.
        """
        now_s, keys = residents.now_s, residents.keys
        uids = {holding.placement.uid for holding in residents.holdings}
        since = {uid: at_s for uid, at_s in self._since.items() if uid in uids}
        first = not np.isfinite(self._observed_s)
        passed_s = min(now_s - self._observed_s, PAUSE_S) + 1.0  # the API has whole seconds
        ages_s, is_known = residents.age_s.tolist(), (fresh[keys.gpu] == FRESH).tolist()
        for uid, age_s, is_fresh in zip(keys.uids, ages_s, is_known, strict=True):
            came = not first and (np.isnan(age_s) or age_s <= passed_s)
            at_s = since.setdefault(uid, -np.inf if came else np.nan)
            if np.isnan(at_s) and is_fresh:
                since[uid] = now_s
        self._since, self._observed_s = since, now_s
        watched = now_s - np.array([since[uid] for uid in keys.uids], dtype=np.float64)
        return np.asarray(np.nan_to_num(watched, nan=0.0, posinf=np.inf), dtype=np.float64)
