"""The policy contract: override what you need, return arrays, keep no state of your own. Also the
functions that check it.

The extension points carry the names of the Kubernetes scheduling framework. Filters and scores
are asked about a `Query` (some nodes, their devices) and must depend on nothing but it, the
policy's own parameters and what `reads` declares, because answers are cached per shape and only
changed nodes are asked about again.

Policies are called through the functions below the class, which check the answers: an error names
policy, hook and value. Types and lengths are checked for all policies. Values, and divisions by
zero, are checked only for policies from elsewhere: tests hold Weft's own to the contract, and a
decision takes microseconds.
"""

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.framework.query import NEVER, Query
from weft.core.ledger.table import Bools, CoResidents, Ints, LedgerTable
from weft.model import PodRequest, Shape
from weft.model.errors import PolicyError


class PlacementOptions(NamedTuple):
    """Ways to place a pod's GPU requests on a node, one row each: the devices afterwards, [ways,
    devices].

    `memory_free` (MiB) and `milli_free` are what is left once the GPU requests are charged,
    `memory_total` is the card's size. `single` are the devices that serve a GPU request of one GPU,
    `several` those that serve one of a GPU request's several. Columns that are not `there` fill up
    the rows of smaller nodes.
    """

    memory_free: Ints
    milli_free: Ints
    memory_total: Ints
    there: Bools
    single: Bools
    several: Bools


class RemainingRequest(NamedTuple):
    """The part still to be placed: the most that one device may be charged by it (MiB for each way,
    and thousandths), and for how many GPU requests of one GPU."""

    memory_mib: Ints
    milli: int
    singles: int


class ExpectedSlowdown(msgspec.Struct, frozen=True, gc=False):
    """Expected slowdown of one pod on the chosen GPU; the new pod's comes first. `slowdown` is a
    factor of the time alone, `upper` its 90 % quantile, `tier` the basis of the prediction;
    `calibrated` says if the bound is reliable. `allowed` is the pod's own limit for `upper`, 0 if
    it has none.
    """

    application: str
    slowdown: float
    upper: float
    tier: str
    calibrated: bool = True
    allowed: float = 0.0


class SlowdownTolerance(NamedTuple):
    """Slowdown that running pods tolerate before one beside them is evicted.

    `critical` is how many times slower than alone a latency-critical pod may be (the engine makes
    it less for one whose SLO leaves less),
    `costs(gpu_model, victim, other)` what one application is expected to cost another there, log
    slowdown.
    """

    critical: float
    costs: Callable[[str, str, str], float]


class ScorePart(msgspec.Struct, frozen=True, gc=False):
    """A part of a place's score: its `name`, its points (higher is better) and the facts behind
    them. `core/explain` puts it into words.
    """

    name: str
    points: float
    facts: dict[str, float | int | str] = {}


class PolicyOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a policy comes from that is not Weft's own: `file` (FILE.py:Class) with the `sha256` of
    its text, or the `version` of an installed package (NAME VERSION)."""

    file: str = ""
    sha256: str = ""
    version: str = ""


class PricesEvery(NamedTuple):
    """Prices are recomputed after this many new pods, at this age in seconds, and when the
    cluster's free GPU has changed by this part of all GPUs (0: never for that reason)."""

    pods: int
    seconds: float
    gpu_part: float = 0.0


NO_BOUND = 1 << 62
"""A rating that none exceeds."""


class Policy:
    """Base of every policy. All defaults mean "no opinion".

    `name` is how configurations call it, `summary` one line for people, `source` the system or
    paper it comes from. `reads` names what besides requests its answers depend on: `occupants`,
    `co_residents` (what runs on a GPU, which it may refuse to join), `signals`, `cluster` (the
    signals of all GPUs, also for the score of one), `pending` (who else waits), `residencies` (how
    far pods are). `inputs` names the `PolicyInput`s that it takes, each with the type of its value.
    `unsafe` says why, where it can promise a GPU memory that does not exist; one made with safe
    options says "". `ties` says which of equally scored devices is taken. GPU requests are placed
    largest first; of equal ones the last goes first where `last_request_first`. One that `harvests`
    may give a pod memory that residents hold but leave idle, within the ledger's declared limit.
    One with `prices_every` is shown the whole cluster so often (`take_table`).
    One with `own_priority` orders its pods by their dialect's own priority (genius/priority) before
    spec.priority; for others that is a label that anybody may write.
    One with `raw_scores` tells kube-scheduler its scores as they are, as its original did; others'
    are made 0 to 10. `compat_system` is the system, by its name under `compat` in the
    configuration, whose flaws the option `compat: exact` keeps. Options are keyword arguments of
    the constructor.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    source: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = frozenset()
    inputs: Mapping[str, Any] = {}
    unsafe: str = ""
    harvests: ClassVar[bool] = False
    prices_every: PricesEvery | None = None
    unpriced: bool = False
    """Set by the engine while prices could not be computed for the present nodes: scores are not
    asked for then, and pods go wherever they fit."""
    own_priority: ClassVar[bool] = False
    raw_scores: bool = False
    compat_system: ClassVar[str] = ""
    ties: ClassVar[Literal["first", "last"]] = "first"
    last_request_first: ClassVar[bool] = False
    is_built_in: ClassVar[bool] = True
    """True for Weft's own, which tests hold to this contract."""
    origin: ClassVar[PolicyOrigin | None] = None
    """Set by the loader; None for Weft's own policies."""

    made_with: dict[str, Any]
    """The options it was made with, so that a decisions file can make it again."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.is_built_in = cls.__module__.startswith("weft.core.policies.")

    def __new__(cls, *_args: Any, **options: Any) -> Self:
        """Remember the options (keyword arguments); everything else is the subclass's own."""
        self = super().__new__(cls)
        self.made_with = options
        return self

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """Return the tolerated slowdown of its pods; None: no pod is evicted for another's
        slowness."""
        return None

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """queueSort: pods with smaller keys go first. Default: priority, then age."""
        return (*self.rank(pod), pod.created_ns)

    def rank(self, pod: PodRequest) -> tuple[int, int]:
        """Return the pod's priority, smaller first: its dialect's own where that counts, and
        spec.priority."""
        return (-pod.queue_priority if self.own_priority else 0, -pod.priority)

    def pre_filter(self, shape: Shape) -> Shape:
        """preFilter: the shape to place instead (an exclusive policy asks for whole cards)."""
        return shape

    def filter_nodes(self, query: Query) -> Bools | None:
        """Filter: nodes this policy accepts, [n]."""
        return None

    def filter_devices(self, query: Query) -> Bools | None:
        """Filter: devices this policy accepts, [d]."""
        return None

    def contested(self, scores: Ints, waiting: int) -> bool:
        """Return True if `filter_pending` must be asked, by the scores of the nodes that fit;
        default yes.

        `waiting` are the pods that wait, this one included.
        """
        return True

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools | None:
        """Filter, after all others and never kept: devices the pod may have among others, [d].

        `query` is about the best nodes that fit, more than pods wait; `pending` are the shapes of
        the pods that wait, in their order, this one's among them. Asked only of who reads
        `pending`.
        """
        return None

    def score_nodes(self, query: Query) -> Ints | None:
        """Score: how good each node is as a whole, integers, higher wins, [n]."""
        return None

    def score_devices(self, query: Query) -> Ints | None:
        """Score: how good each device is for `query.need`, integers, higher wins, [d].

        A node's score is its best fitting device's plus `score_nodes`. Devices that do not fit
        may get any value. Of equal devices the one that `ties` says is taken.
        """
        return None

    def rate_options(self, options: PlacementOptions) -> Ints:
        """Score: how good ways to place several GPU requests on one node are, higher wins, [ways].

        A policy that overrides this has the distinct ways of a pod with several GPU requests rated,
        as far as the search's bound goes (Elastic's raters need it); others get the GPU requests
        placed one after another. Devices must be interchangeable to it: their numbers do not count.
        """
        raise NotImplementedError

    def bound_options(self, options: PlacementOptions, remaining: RemainingRequest) -> Ints:
        """Upper bound of the rating of what comes of these half-placed ones, [ways]; default: no
        bound. The tighter it is, the more nodes are searched exactly.
        """
        return np.full(len(options.memory_free), NO_BOUND, dtype=np.int64)

    def normalize(self, scores: Ints) -> Ints:
        """normalizeScore: raw scores of the feasible nodes to 0–100. Default: by their range."""
        low, high = int(scores.min()), int(scores.max())
        if low == high:
            return np.zeros_like(scores)
        return np.asarray((scores - low) * 100 // (high - low))

    def choose_node(self, rows: Ints, key: str) -> int:
        """Chooses one of the equally best nodes (in tie-break order): an index into `rows`."""
        return 0

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Chooses a device of the node, where the policy scores none: an index into `fits`.

        `query` is about that node alone; `fits` are the positions of devices that fit. A pod with
        several GPU requests is asked about once per GPU, in the state the earlier ones left.
        Default: the tightest that fits, the first of equals.
        """
        return int(query.room.take(fits).argmin())

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """For the record: what is expected of the pod and of `co_residents` on a GPU it shares."""
        return ()

    def score_parts(self, query: Query, devices: Sequence[int]) -> tuple[ScorePart, ...]:
        """Return the parts of one place's score; default: none.

        `query` is about the place's node alone, `devices` are positions of its devices.
        """
        return ()

    def take_input(self, name: str, value: Any) -> None:
        """New input of this name, of the type that `inputs` says; kept answers are dropped."""

    def prepare_input(self, name: str, value: Any, table: LedgerTable) -> None:
        """Work out beforehand what is slow in taking this input, on a thread beside decisions:
        nothing of the policy's own may change. Default: nothing is slow."""

    def take_turnover(self, part: float) -> None:
        """Before each `take_table`: the part (0 to 1) of what pods hold that took the place of
        what others had freed (`core/engine/pricing.py`)."""

    def take_table(self, table: LedgerTable) -> None:
        """The whole cluster as it is, for one with `prices_every`: at the start, after each input,
        and as pods come (`core/engine/pricing.py`); kept answers are dropped. Change nothing before
        all is worked out: where this raises, the prices from before stand while the nodes do."""


def draw(key: str, choices: int) -> int:
    """Draw a number below `choices`, uniformly, the same for the same key on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % choices


# --- how policies are asked ---------------------------------------------------------------------

MOST_SCORE = 1 << 50
"""Scores beyond it have no room beside a device's number in 64 bits."""
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_WHOLE_NUMBERS = "return whole numbers (np.int64), such as (1000 * score).astype(np.int64)"
_MASK = "return booleans, such as score > 0"
_DIVIDE = "divide only where the divisor is not 0: np.divide(a, b, out=…, where=b != 0)"


class _Things:
    """The things for which an answer has one value each, and their name in an error."""

    __slots__ = ("count", "hook", "policy", "query", "word")

    def __init__(
        self, policy: Policy, hook: str, word: str, count: int, query: Query | None = None
    ) -> None:
        self.policy, self.hook, self.word, self.count = policy, hook, word, count
        self.query = query

    def name(self, at: int) -> str:
        """Return the thing at this place of the answer."""
        if self.query is None:
            return f"{self.word} {at}"
        gpu = ""
        if self.word == "GPU":
            gpu, at = f"GPU {self.query.device_local[at]} of ", int(self.query.device_node[at])
        row = at if self.query.rows is None else int(self.query.rows[at])
        return f"{gpu}node {self.query.table.nodes[row].name}"

    def error(self, what: str) -> PolicyError:
        """Build the error about a wrong answer."""
        return PolicyError(self.policy.name, self.hook, what)


def score_nodes(policy: Policy, query: Query) -> Ints | None:
    """Return the policy's scores of the nodes, [n]."""
    if policy.unpriced:
        return None
    scores = _ask(policy, "score_nodes", query)
    if scores is None or (policy.is_built_in and _is_column(scores, query.n, _INT64)):
        return scores  # type: ignore[no-any-return]
    return _scores(_Things(policy, "score_nodes", "node", query.n, query), scores)


def score_devices(policy: Policy, query: Query) -> Ints | None:
    """Return the policy's scores of the devices, [d]; all the same where it has no prices for
    them."""
    if policy.unpriced:
        return np.zeros(query.d, dtype=np.int64)
    scores = _ask(policy, "score_devices", query)
    if scores is None or (policy.is_built_in and _is_column(scores, query.d, _INT64)):
        return scores  # type: ignore[no-any-return]
    things = _Things(policy, "score_devices", "GPU", query.d, query)
    return _scores(things, scores, query.device_fits)


def filter_nodes(policy: Policy, query: Query) -> Bools | None:
    """Return the nodes that the policy accepts, [n]."""
    mask = _ask(policy, "filter_nodes", query)
    if mask is None or _is_column(mask, query.n, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_nodes", "node", query.n, query), mask)


def filter_devices(policy: Policy, query: Query) -> Bools | None:
    """Return the devices that the policy accepts, [d]."""
    mask = _ask(policy, "filter_devices", query)
    if mask is None or _is_column(mask, query.d, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_devices", "GPU", query.d, query), mask)


def filter_pending(policy: Policy, query: Query, pending: Sequence[Shape]) -> Bools | None:
    """Return a mask of the devices that the pod may have among other waiting pods, [d]."""
    mask = _ask(policy, "filter_pending", query, pending)
    if mask is None or _is_column(mask, query.d, _BOOL):
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_pending", "GPU", query.d, query), mask)


def rate_options(policy: Policy, options: PlacementOptions) -> Ints:
    """Return the policy's ratings of ways to place several GPU requests, [ways]."""
    ratings = _ask(policy, "rate_options", options)
    return _ratings(policy, "rate_options", ratings, len(options.memory_free))


def bound_options(policy: Policy, options: PlacementOptions, left: RemainingRequest) -> Ints:
    """Return upper bounds of the ratings of partly placed pods, [ways]."""
    bounds = _ask(policy, "bound_options", options, left)
    return _ratings(policy, "bound_options", bounds, len(options.memory_free))


def normalize(policy: Policy, scores: Ints) -> Ints:
    """Return the policy's scores made 0 to 100."""
    normal = _ask(policy, "normalize", scores)
    return _ratings(policy, "normalize", normal, len(scores), "node")


def choose_node(policy: Policy, rows: Ints, key: str) -> int:
    """Return an index into `rows`."""
    return _index(policy, "choose_node", _ask(policy, "choose_node", rows, key), len(rows))


def choose_device(policy: Policy, query: Query, fits: Ints, key: str) -> int:
    """Return an index into `fits`."""
    chosen = _ask(policy, "choose_device", query, fits, key)
    return _index(policy, "choose_device", chosen, len(fits))


def queue_key(policy: Policy, pod: PodRequest) -> tuple[int, ...]:
    """Return the pod's place in the queue: whole numbers, so that any two can be compared."""
    key = _ask(policy, "queue_key", pod)
    try:
        return tuple(map(operator.index, key))
    except TypeError:
        what = f"returned {_shown(key)}; return a tuple of whole numbers"
        raise PolicyError(policy.name, "queue_key", what) from None


def pre_filter(policy: Policy, shape: Shape) -> Shape:
    """Return the shape to place instead."""
    instead = _ask(policy, "pre_filter", shape)
    if isinstance(instead, Shape):
        return instead
    what = f"returned {_shown(instead)}; return the Shape to place, or the one it was given"
    raise PolicyError(policy.name, "pre_filter", what)


def take_input(policy: Policy, name: str, value: Any) -> None:
    """Give the policy an input."""
    _ask(policy, "take_input", name, value)


def take_table(policy: Policy, table: LedgerTable) -> None:
    """Have the policy compute its prices."""
    _ask(policy, "take_table", table)


# --- how answers are checked ---------------------------------------------------------------------


def _ask(policy: Policy, hook: str, *arguments: Any) -> Any:
    try:
        if policy.is_built_in:
            return getattr(policy, hook)(*arguments)
        with np.errstate(divide="raise", invalid="raise"):
            return getattr(policy, hook)(*arguments)
    except Exception as error:
        raise PolicyError(policy.name, hook, _broke_off(policy, error)) from error


def _broke_off(policy: Policy, error: Exception) -> str:
    """Say what was raised, and the last line of the policy's own code involved."""
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
    """Return the answer as an array of the right length and kind of numbers."""
    if not isinstance(value, np.ndarray | list | tuple):
        raise things.error(f"returned {_shown(value)}, which is not an array; {wanted}")
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
    """Return the value that shows best what is wrong: not finite, not whole, or the first."""
    if array.dtype.kind != "f":
        return 0
    for wrong in (~np.isfinite(array), array != np.trunc(array)):
        if wrong.any():
            return int(wrong.argmax())
    return 0


def _scores(things: _Things, value: Any, counts: Bools | None = None) -> Ints:
    """Check scores: 64-bit integers; of policies from elsewhere also within bounds where they
    count."""
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
    """Return a value in an error: short, and the same in every process."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, tuple | list) and len(value) <= 8:
        return f"({', '.join(map(_shown, value))})"
    return f"a {type(value).__name__}"
