"""Observed slowdowns of running pods on top of predictions: measured pairs, and bans.

    progress ──saw──▶ history of each pair ─┐
    an eviction ──ban──▶ apart for 30 min ──┼──due──▶ the table that policies get, patched
    base table ─────────────────────────────┘

A pair that was seen three times or more counts as measured. The common error of an application's
observed pairs corrects the predictions for its other pairs. Otherwise the base table is unchanged.
Pairs that it forbids stay forbidden, and bounds from a user's table are never lowered. Pairs not
seen for a week are forgotten. Nothing is measured or decided in this module.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from weft.interference.additive import Correction, Residuals
from weft.interference.history import History, RecentMean, RememberedSlowdown
from weft.interference.records import FORMER_NAMES
from weft.model.former_names import with_todays_names
from weft.model.interference_table import (
    OBSERVED,
    Floats,
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    Tiers,
    interference,
)

SECOND_NS = 1_000_000_000
BAN_NS = 30 * 60 * SECOND_NS
KEEP_NS = 7 * 24 * 3600 * SECOND_NS
"""A pair not seen for this long is forgotten: programs change, and pairs of one-off jobs would
otherwise be kept for ever. Jobs that run less often than weekly are learnt again each time."""
TELL_NS = 5 * 60 * SECOND_NS
"""Shortest time between two updates of the table, except for bans: an update invalidates all cached
decisions."""
MOVED = 0.02
"""Change of a pair's log slowdown that is worth an update of the table."""
MOST_PAIRS, MOST_BANS, MOST_VALUES = 1_000, 1_000, 20
MOST_NAMES = 128
"""Maximum number of applications to correct (the last ones seen), and of applications to add to
those of the base table: the table's size is the square of their number."""
MOST_MISSED = math.log(2.0)
"""Largest error of a predicted log slowdown by which one observed pair corrects its applications'
other predictions; an error beyond this is taken to concern that pair alone."""
MOST_SLOWDOWN = 100.0
_CORRECTED = (PredictionTier.LEARNED, PredictionTier.ADDITIVE, PredictionTier.HINGE)
_FAR = math.log(10 * MOST_SLOWDOWN)

Key = tuple[str, str, tuple[str, ...]]
"""(GPU model, target, the target's neighbours sorted)."""
Apart = tuple[str, str, str]
"""(GPU model, application, other application), the two applications sorted."""
_NOTHING: tuple[dict[Key, RememberedSlowdown], frozenset[Apart]] = ({}, frozenset())


class ObservedPair(msgspec.Struct, frozen=True):
    """Log slowdowns of `target` with `others` on a GPU model: their moving mean, and the latest
    values.

    `seen_ns`: when the pair was last seen, in ns since 1970; 0 is unknown, and counts as now."""

    gpu_model: str
    target: str
    others: tuple[str, ...]
    mean: float
    values: tuple[float, ...]
    seen_ns: int = 0


class Ban(msgspec.Struct, frozen=True):
    """Two applications that must not share a GPU of this model before `until_ns`."""

    gpu_model: str
    application: str
    other: str
    until_ns: int


class ObservationRecord(msgspec.Struct, frozen=True):
    """All observations as plain data, the most recent last."""

    pairs: tuple[ObservedPair, ...] = ()
    bans: tuple[Ban, ...] = ()
    schema: Literal["weft.dev/observed/v1"] = "weft.dev/observed/v1"


def encode(record: ObservationRecord) -> str:
    """Encode as JSON."""
    return msgspec.json.encode(record).decode()


def decode(text: str | bytes) -> ObservationRecord:
    """Decode JSON; raise `msgspec.DecodeError` if the text is not a valid record or a value is out
    of range."""
    try:
        document = with_todays_names(msgspec.json.decode(text), FORMER_NAMES)
        record = msgspec.convert(document, ObservationRecord)
    except RecursionError:
        raise msgspec.DecodeError("is nested too deeply") from None
    for pair in record.pairs:
        if not pair.others or not pair.values:
            raise msgspec.ValidationError(
                f"{pair.target[:100]!r}: its list of others or of values is empty"
            )
        if not all(abs(value) <= _FAR for value in (pair.mean, *pair.values)):
            raise msgspec.ValidationError(f"{pair.target[:100]!r}: a value is out of range")
    return record


class _Recent(History):
    """A history with fewer values per pair: each poll adds values, and they are stored in a
    ConfigMap."""

    MOST = MOST_VALUES


class _Cells(NamedTuple):
    """A table under construction: its GPU models, its classes, and arrays of [M, K+1, K+1]."""

    models: list[str]
    classes: list[str]
    mean: Floats
    upper: Floats
    tier: Tiers


class ObservedSlowdowns:
    """Observations on top of a base table. Times are UTC, so that they stay valid in a later
    process.

    `before` is what an earlier process observed, to continue from."""

    def __init__(self, base: InterferenceTable, before: ObservationRecord | None = None) -> None:
        self._history: dict[str, History] = {}
        self._seen: OrderedDict[Key, RememberedSlowdown | None] = OrderedDict()
        self._seen_ns: dict[Key, int] = {}
        self._bans: OrderedDict[Apart, int] = OrderedDict()
        self._told: tuple[dict[Key, RememberedSlowdown], frozenset[Apart]] | None = _NOTHING
        self._told_ns = 0
        self._version = base.version
        self.base, self._view = base, InterferenceView(base)
        for pair in (before or ObservationRecord()).pairs[-MOST_PAIRS:]:
            key = (pair.gpu_model, pair.target, tuple(sorted(pair.others)))
            history = self._of(pair.gpu_model)
            history.put(*key[1:], RecentMean(pair.mean, list(pair.values[-MOST_VALUES:])))
            self._seen[key] = history.of(*key[1:])
            self._seen_ns[key] = pair.seen_ns
        for ban in (before or ObservationRecord()).bans:
            self._put(ban.gpu_model, ban.application, ban.other, ban.until_ns)

    def rebase(self, base: InterferenceTable) -> None:
        """Replace the base table; if there are observations, an update is due."""
        self.base, self._view = base, InterferenceView(base)
        self._version = max(self._version, base.version)
        if self._told != _NOTHING:
            self._told = None

    # --- observations ---

    def saw(self, gpu_model: str, target: str, others: Sequence[str], slowdown: float) -> None:
        """Add the slowdown counted over one window in which the same pods ran throughout.

        `others` are the target's neighbours. Nothing is added without neighbours, or if `slowdown`
        is not finite and above 0."""
        if not others or not (math.isfinite(slowdown) and slowdown > 0.0):
            return
        value = math.log(min(max(slowdown, 1.0 / MOST_SLOWDOWN), MOST_SLOWDOWN))
        key = (gpu_model, target, tuple(sorted(others)))
        self._of(gpu_model).saw(*key[1:], value)
        self._seen[key] = self._of(gpu_model).of(*key[1:])
        self._seen.move_to_end(key)
        self._seen_ns[key] = 0  # unknown until the next call that passes the time
        if len(self._seen) > MOST_PAIRS:
            self._forget(next(iter(self._seen)))

    def ban(self, gpu_model: str, application: str, other: str, now_ns: int) -> None:
        """Keep these two applications off one GPU for 30 minutes.

        Nothing happens if either is "": pods that name no application have nothing in common, so
        the ban would affect unrelated pods."""
        self._put(gpu_model, application, other, now_ns + BAN_NS)

    def bans(self, now_ns: int) -> tuple[Ban, ...]:
        """Return the bans in force. If the clock went back, no ban lasts longer than 30 minutes
        from now."""
        for key, until_ns in list(self._bans.items()):
            if until_ns <= now_ns:
                del self._bans[key]
            else:
                self._bans[key] = min(until_ns, now_ns + BAN_NS)
        return tuple(Ban(*key, until_ns) for key, until_ns in self._bans.items())

    def _put(self, gpu_model: str, application: str, other: str, until_ns: int) -> None:
        if not application or not other:
            return
        key = (gpu_model, min(application, other), max(application, other))
        self._bans[key] = max(until_ns, self._bans.get(key, 0))
        self._bans.move_to_end(key)
        if len(self._bans) > MOST_BANS:
            self._bans.popitem(last=False)

    def _of(self, gpu_model: str) -> History:
        return self._history.setdefault(gpu_model, _Recent())

    def _forget(self, key: Key) -> None:
        del self._seen[key], self._seen_ns[key]
        self._of(key[0]).forget(*key[1:])

    def _forget_old(self, now_ns: int) -> None:
        """Forget pairs not seen for `KEEP_NS`; if the clock went back, they count as seen now."""
        for key, seen_ns in list(self._seen_ns.items()):
            self._seen_ns[key] = min(seen_ns or now_ns, now_ns)
            if now_ns - self._seen_ns[key] >= KEEP_NS:
                self._forget(key)

    # --- the table for policies ---

    def due(self, now_ns: int) -> InterferenceTable | None:
        """Return the patched table if an update is due, else None.

        An update is due at once when a ban began or ended or `rebase` made it due, and otherwise
        at most every five minutes, if a pair's slowdown changed. Each table has a higher version
        than the one before."""
        self._forget_old(now_ns)
        known, bans = self._with_room(self.bans(now_ns))
        if self._told is not None and bans == self._told[1]:
            early = self._told_ns and 0 <= now_ns - self._told_ns < TELL_NS
            if early or not _moved(self._told[0], known):
                return None
        self._told, self._told_ns = (known, bans), now_ns
        self._version += 1
        return self._patched(known, bans)

    def kept(self, now_ns: int) -> ObservationRecord:
        """Return the observations and bans from which another process can continue."""
        self._forget_old(now_ns)
        pairs = []
        for key in self._seen:
            memory = self._of(key[0]).memory(*key[1:])
            if memory is not None:
                values = tuple(round(value, 4) for value in memory.values)
                pairs.append(ObservedPair(*key, round(memory.mean, 4), values, self._seen_ns[key]))
        return ObservationRecord(tuple(pairs), self.bans(now_ns))

    def _with_room(
        self, bans: Sequence[Ban]
    ) -> tuple[dict[Key, RememberedSlowdown], frozenset[Apart]]:
        """Return the observations and bans that fit into the table: bans first, and of bans and of
        observations the most recent."""
        base, names = set(self.base.classes), set[str]()

        def fits(*applications: str) -> bool:
            new = {*applications} - base - names
            if len(names) + len(new) > MOST_NAMES:
                return False
            names.update(new)
            return True

        apart = (msgspec.structs.astuple(ban)[:3] for ban in reversed(bans))
        kept_apart = frozenset(pair for pair in apart if fits(*pair[1:]))
        known = [
            (key, slowdown)
            for key, slowdown in reversed(self._seen.items())
            if slowdown is not None and fits(key[1], *key[2])
        ]
        return dict(reversed(known)), kept_apart

    def _patched(
        self, known: dict[Key, RememberedSlowdown], bans: frozenset[Apart]
    ) -> InterferenceTable:
        cells = self._cells(known, bans)
        at = {name: index for index, name in enumerate(cells.classes)}
        row = {name: index for index, name in enumerate(cells.models)}
        for model in sorted({key[0] for key in known}):
            seen = [(key, mean) for key, mean in known.items() if key[0] == model]
            self._correct(cells, row[model], seen)
        for (model, target, others), slowdown in known.items():
            cell = (row[model], at[target], at[others[0]])
            if len(others) == 1 and np.isfinite(cells.upper[cell]):
                _measured(cells, cell, slowdown)
        for model, first, second in bans:
            cells.upper[row[model], at[first], at[second]] = np.inf
            cells.upper[row[model], at[second], at[first]] = np.inf
        arrays, sources = (cells.mean, cells.upper, cells.tier), (*self.base.sources, OBSERVED)
        return interference(self._version, cells.models, cells.classes, arrays, sources)

    def _cells(self, known: dict[Key, RememberedSlowdown], bans: frozenset[Apart]) -> _Cells:
        """Return the base table extended by observed applications; these get its values for unknown
        applications."""
        names = dict.fromkeys(self.base.classes)
        size, models = len(names), dict.fromkeys(self.base.gpu_models)
        models |= dict.fromkeys(sorted({key[0] for key in (*bans, *known)}))
        pairs = [*bans, *((model, target, *others) for model, target, others in known)]
        names |= dict.fromkeys(sorted({name for _, *named in pairs for name in named}))
        index = np.minimum(np.arange(len(names) + 1), size)
        cards = [self._view.of(model) for model in models]
        mean, upper = (
            np.array([getattr(card, name)[np.ix_(index, index)] for card in cards]).reshape(
                len(cards), len(index), len(index)
            )
            for name in ("mean", "upper")
        )
        tiers = [card.tier[np.ix_(index, index)] for card in cards]
        tier = np.array(tiers, dtype=np.int8).reshape(mean.shape)
        return _Cells(list(models), list(names), mean, upper, tier)

    def _correct(
        self, cells: _Cells, row: int, known: list[tuple[Key, RememberedSlowdown]]
    ) -> None:
        """Shift predictions by what was observed of the target and of its neighbours in other
        pairs."""
        at = {name: index for index, name in enumerate(cells.classes)}
        mean, tier = cells.mean[row], np.abs(cells.tier[row])
        seen: list[Residuals] = []
        names: set[str] = set()
        for (_, target, others), slowdown in reversed(known):
            names |= {target, *others}
            if len(names) > MOST_NAMES:
                break
            expected = sum(float(mean[at[target], at[other]]) for other in others)
            missed = min(max(slowdown.mean - expected, -MOST_MISSED), MOST_MISSED)
            seen.append(Residuals(target, others, missed))
        correction = Correction(seen)
        suffers = np.array([correction.of(name, ()) for name in cells.classes] + [0.0])
        inflicts = (
            np.array([correction.of(name, (name,)) for name in cells.classes] + [0.0]) - suffers
        )
        moved = np.where(np.isin(tier, _CORRECTED), suffers[:, None] + inflicts[None, :], 0.0)
        cells.mean[row] += moved
        cells.upper[row] += moved


def _measured(cells: _Cells, cell: tuple[int, int, int], observed: RememberedSlowdown) -> None:
    """Write the observation of a pair into the table's cell; a bound from a user's table is only
    ever raised."""
    mean, upper = observed.mean, observed.upper
    if cells.tier[cell] == PredictionTier.TABLE:
        mean, upper = max(mean, cells.mean[cell]), max(upper, cells.upper[cell])
        if (mean, upper) == (cells.mean[cell], cells.upper[cell]):
            return
    cells.mean[cell], cells.upper[cell], cells.tier[cell] = mean, upper, PredictionTier.MEASURED


def _moved(published: dict[Key, RememberedSlowdown], known: dict[Key, RememberedSlowdown]) -> bool:
    """Return True if any pair changed enough to be worth an update, or was forgotten."""
    return bool(published.keys() - known.keys()) or any(
        key not in published
        or abs(published[key].mean - slowdown.mean) > MOVED
        or abs(published[key].upper - slowdown.upper) > MOVED
        for key, slowdown in known.items()
    )
