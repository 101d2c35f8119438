"""Asks policies, and checks what they answer: a wrong answer names policy, hook and value.

Types and lengths are checked for all policies. Values are checked, and divisions by zero noticed,
only for policies from elsewhere: tests hold Weft's own to it, and a decision takes microseconds.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.framework.policy import PlacementOptions, Policy, RemainingRequest
from weft.core.framework.query import NEVER, Query
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import PodRequest, Shape
from weft.model.errors import PolicyError

MOST_SCORE = 1 << 50
"""Scores beyond it have no room beside a device's number in 64 bits."""
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_WHOLE_NUMBERS = "return whole numbers (np.int64), such as (1000 * score).astype(np.int64)"
_MASK = "return booleans, such as score > 0"
_DIVIDE = "divide only where the divisor is not 0: np.divide(a, b, out=…, where=b != 0)"


class _Things:
    """The things that an answer has one value for each of, and their name in an error."""

    __slots__ = ("count", "hook", "policy", "query", "word")

    def __init__(
        self, policy: Policy, hook: str, word: str, count: int, query: Query | None = None
    ) -> None:
        self.policy, self.hook, self.word, self.count = policy, hook, word, count
        self.query = query

    def name(self, at: int) -> str:
        """The thing at this place of the answer."""
        if self.query is None:
            return f"{self.word} {at}"
        gpu = ""
        if self.word == "GPU":
            gpu, at = f"GPU {self.query.device_local[at]} of ", int(self.query.device_node[at])
        row = at if self.query.rows is None else int(self.query.rows[at])
        return f"{gpu}node {self.query.table.nodes[row].name}"

    def error(self, what: str) -> PolicyError:
        """The answer is wrong."""
        return PolicyError(self.policy.name, self.hook, what)


# --- the hooks -----------------------------------------------------------------------------------


def score_nodes(policy: Policy, query: Query) -> Ints | None:
    """The policy's scores of the nodes, [n]."""
    if policy.unpriced:
        return None
    scores = _ask(policy, "score_nodes", query)
    if scores is None or (policy.is_built_in and _is_column(scores, query.n, _INT64)):
        return scores  # type: ignore[no-any-return]
    return _scores(_Things(policy, "score_nodes", "node", query.n, query), scores)


def score_devices(policy: Policy, query: Query) -> Ints | None:
    """The policy's scores of the devices, [d]; all the same where it has no prices for them."""
    if policy.unpriced:
        return np.zeros(query.d, dtype=np.int64)
    scores = _ask(policy, "score_devices", query)
    if scores is None or (policy.is_built_in and _is_column(scores, query.d, _INT64)):
        return scores  # type: ignore[no-any-return]
    things = _Things(policy, "score_devices", "GPU", query.d, query)
    return _scores(things, scores, query.device_fits)


def filter_nodes(policy: Policy, query: Query) -> Bools | None:
    """The nodes that the policy accepts, [n]."""
    mask = _ask(policy, "filter_nodes", query)
    if mask is None or _is_column(mask, query.n, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_nodes", "node", query.n, query), mask)


def filter_devices(policy: Policy, query: Query) -> Bools | None:
    """The devices that the policy accepts, [d]."""
    mask = _ask(policy, "filter_devices", query)
    if mask is None or _is_column(mask, query.d, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_devices", "GPU", query.d, query), mask)


def filter_pending(policy: Policy, query: Query, pending: Sequence[Shape]) -> Bools | None:
    """The devices that the pod may have among others that wait, [d]."""
    mask = _ask(policy, "filter_pending", query, pending)
    if mask is None or _is_column(mask, query.d, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_pending", "GPU", query.d, query), mask)


def rate_options(policy: Policy, options: PlacementOptions) -> Ints:
    """The policy's ratings of ways to place several claims, [ways]."""
    ratings = _ask(policy, "rate_options", options)
    return _ratings(policy, "rate_options", ratings, len(options.memory_free))


def bound_options(policy: Policy, options: PlacementOptions, left: RemainingRequest) -> Ints:
    """Upper bounds of the ratings of half-placed ones, [ways]."""
    bounds = _ask(policy, "bound_options", options, left)
    return _ratings(policy, "bound_options", bounds, len(options.memory_free))


def normalize(policy: Policy, scores: Ints) -> Ints:
    """The policy's scores made 0 to 100."""
    normal = _ask(policy, "normalize", scores)
    return _ratings(policy, "normalize", normal, len(scores), "node")


def choose_node(policy: Policy, rows: Ints, key: str) -> int:
    """An index into `rows`."""
    return _index(policy, "choose_node", _ask(policy, "choose_node", rows, key), len(rows))


def choose_device(policy: Policy, query: Query, fits: Ints, key: str) -> int:
    """An index into `fits`."""
    chosen = _ask(policy, "choose_device", query, fits, key)
    return _index(policy, "choose_device", chosen, len(fits))


def queue_key(policy: Policy, pod: PodRequest) -> tuple[int, ...]:
    """The pod's place in the queue: whole numbers, so that any two can be compared."""
    key = _ask(policy, "queue_key", pod)
    try:
        return tuple(map(operator.index, key))
    except TypeError:
        what = f"returned {_shown(key)}; return a tuple of whole numbers"
        raise PolicyError(policy.name, "queue_key", what) from None


def pre_filter(policy: Policy, shape: Shape) -> Shape:
    """The shape to place instead."""
    instead = _ask(policy, "pre_filter", shape)
    if isinstance(instead, Shape):
        return instead
    what = f"returned {_shown(instead)}; return the Shape to place, or the one it was given"
    raise PolicyError(policy.name, "pre_filter", what)


def take_input(policy: Policy, name: str, value: Any) -> None:
    """The policy takes an input."""
    _ask(policy, "take_input", name, value)


def take_table(policy: Policy, table: LedgerTable) -> None:
    """The policy makes its prices."""
    _ask(policy, "take_table", table)


# --- the checks ----------------------------------------------------------------------------------


def _ask(policy: Policy, hook: str, *arguments: Any) -> Any:
    try:
        if policy.is_built_in:
            return getattr(policy, hook)(*arguments)
        with np.errstate(divide="raise", invalid="raise"):
            return getattr(policy, hook)(*arguments)
    except Exception as error:
        raise PolicyError(policy.name, hook, _broke_off(policy, error)) from error


def _broke_off(policy: Policy, error: Exception) -> str:
    """Says what was raised, and the policy's own line that it came through last."""
    place, step = "", error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if frame.f_globals.get("__name__") == type(policy).__module__:
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f" ({file}, line {step.tb_lineno})"
        step = step.tb_next
    advice = f"; {_DIVIDE}" if isinstance(error, FloatingPointError) else ""
    return f"{type(error).__name__}: {error}{place}{advice}"


def _is_column(value: Any, count: int, dtype: npt.DTypeLike) -> bool:
    return type(value) is np.ndarray and value.dtype is dtype and value.shape == (count,)


def _column(things: _Things, value: Any, kinds: str, wanted: str) -> npt.NDArray[Any]:
    """The answer as an array of the right length and kind of numbers."""
    if not isinstance(value, np.ndarray | list | tuple):
        raise things.error(f"returned {_shown(value)}, which is no array; {wanted}")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise things.error(f"returned no array: {error}; {wanted}") from None
    if array.shape != (things.count,):
        answered = f"{len(array)} values" if array.ndim == 1 else f"an array of shape {array.shape}"
        wanted = f"{things.count} {things.word}s"
        raise things.error(f"returned {answered} for {wanted}; return one value for each")
    if array.dtype.kind not in kinds and things.count:
        at = _first_wrong(array)
        kind = f"{_shown(array[at])} ({array.dtype}) for {things.name(at)}"
        raise things.error(f"returned {kind}; {wanted}")
    return array


def _first_wrong(array: npt.NDArray[Any]) -> int:
    """The value that shows best what is wrong: not finite, not whole, or the first."""
    if array.dtype.kind != "f":
        return 0
    for wrong in (~np.isfinite(array), array != np.trunc(array)):
        if wrong.any():
            return int(wrong.argmax())
    return 0


def _scores(things: _Things, value: Any, counts: Bools | None = None) -> Ints:
    """Whole numbers of 64 bits; of another's policy also within bounds where they count."""
    array = _column(things, value, "iu", _WHOLE_NUMBERS)
    if things.policy.is_built_in:
        return array.astype(np.int64, copy=False)
    too_large = (array > MOST_SCORE) | ((array < -MOST_SCORE) & (array != NEVER))
    if counts is not None:
        too_large &= counts
    if too_large.any():
        at = int(too_large.argmax())
        what = f"returned {array[at]} for {things.name(at)}; scores end at ±2**50"
        raise things.error(what)
    return array.astype(np.int64, copy=False)


def _mask(things: _Things, value: Any) -> Bools:
    return _column(things, value, "b", _MASK).astype(np.bool_, copy=False)


def _ratings(policy: Policy, hook: str, value: Any, count: int, word: str = "way") -> Ints:
    if _is_column(value, count, _INT64):
        return value  # type: ignore[no-any-return]
    things = _Things(policy, hook, word, count)
    return _column(things, value, "iu", _WHOLE_NUMBERS).astype(np.int64, copy=False)


def _index(policy: Policy, hook: str, value: Any, count: int) -> int:
    try:
        index = operator.index(value)
    except TypeError:
        index = -1
    if not 0 <= index < count:
        what = f"returned {_shown(value)}; return a whole number from 0 to {count - 1}"
        raise PolicyError(policy.name, hook, what)
    return index


def _shown(value: Any) -> str:
    """A value in an error: short, and the same in every process."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, tuple | list) and len(value) <= 8:
        return f"({', '.join(map(_shown, value))})"
    return f"a {type(value).__name__}"
