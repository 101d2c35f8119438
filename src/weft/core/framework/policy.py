"""The policy contract, and the functions that call policies and check their answers.

A policy overrides the hooks that it needs, and returns arrays. The extension points have the names
of the Kubernetes scheduling framework. Filters and scores are asked about a `Query` (some nodes and
their devices) and must depend on nothing but the query, the policy's own parameters and the facts
named in `reads`, because answers are cached per shape and only changed nodes are asked about again.

An error names policy, hook and value. Types and lengths are checked for all policies. Values, and
divisions by zero, are checked only for policies that are not Weft's own: Weft's own are checked by
tests, as a decision takes only microseconds."""

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from weft.core.framework.query import NEVER, Query
from weft.core.ledger.table import Bools, CoResidents, Ints, LedgerTable
from weft.model import PodRequest, Shape
from weft.model.errors import PolicyError


class PlacementOptions(NamedTuple):
    """Ways to place a pod's GPU requests on a node, one row each: the devices afterwards, [ways,
    devices].

    `memory_free` (MiB) and `milli_free` are the amounts left once the GPU requests are charged,
    `memory_total` is the device's size. `single` marks devices used for a GPU request for one GPU,
    `several` devices used for part of a request for several GPUs. Columns that are not `there` pad
    the rows of smaller nodes."""

    memory_free: Ints
    milli_free: Ints
    memory_total: Ints
    there: Bools
    single: Bools
    several: Bools


class RemainingRequest(NamedTuple):
    """The part of a pod that is still to be placed: the most that it may charge to one device
    (`memory_mib` for each way, and `milli`), and how many of its GPU requests are for one GPU
    (`singles`)."""

    memory_mib: Ints
    milli: int
    singles: int


class ExpectedSlowdown(msgspec.Struct, frozen=True, gc=False):
    """Expected slowdown of one pod on the chosen GPU; in a list of these, the new pod's comes
    first. `slowdown` is the factor by which the pod takes longer than alone, `upper` its 90 %
    quantile, `tier` the basis of the prediction; `calibrated` is False if `upper` is not
    reliable. `allowed` is the pod's own limit for `upper`, 0 if it has none."""

    application: str
    slowdown: float
    upper: float
    tier: str
    calibrated: bool = True
    allowed: float = 0.0


class SlowdownTolerance(NamedTuple):
    """Slowdown that running pods tolerate before a co-resident is evicted.

    `critical` is the factor by which a latency-critical pod may be slower than alone (the engine
    lowers it for a pod whose SLO allows less). `costs(gpu_model, victim, other)` is the slowdown,
    as a logarithm, that one application is expected to cause another on this GPU model."""

    critical: float
    costs: Callable[[str, str, str], float]


class ScorePart(msgspec.Struct, frozen=True, gc=False):
    """A part of a place's score: its `name`, its points (higher is better) and the facts behind
    them. `core/explain` describes the part in words."""

    name: str
    points: float
    facts: dict[str, float | int | str] = {}


class PolicyOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Origin of a policy that is not Weft's own: `file` (FILE.py:Class) with the `sha256` of its
    text, or the `version` of an installed package (NAME VERSION)."""

    file: str = ""
    sha256: str = ""
    version: str = ""


class PricesEvery(NamedTuple):
    """Conditions to recompute a policy's prices; any is sufficient: this many new pods, prices this
    many seconds old, or a change of the cluster's free GPU by this part of all GPUs (0: never)."""

    pods: int
    seconds: float
    gpu_part: float = 0.0


NO_BOUND = 1 << 62
"""A bound that no rating exceeds."""


class Policy:
    """Base class of every policy. The default of every hook means "no opinion".

    `name` is the policy's name in configurations, `summary` one line for users, `source` the system
    or paper that it comes from. `reads` names the facts, besides requests, that its answers depend
    on: `occupants`, `co_residents` (the pods on a GPU, which the policy may refuse to join),
    `signals`, `cluster` (the signals of all GPUs, even for the score of one), `pending` (the other
    waiting pods), `residencies` (the progress of running pods). `inputs` names the `PolicyInput`s
    that the policy takes, each with the type of its value. `unsafe` is the reason why the policy
    can reserve GPU memory that does not exist, "" if it cannot with its options. `ties` selects the
    first or last of equally scored devices. GPU requests are placed largest first; with
    `last_request_first` the last of equal ones comes first. A policy that `harvests` may give a pod
    memory that other pods hold but leave idle, within the ledger's declared limit. A policy with
    `prices_every` is shown the whole cluster at these times (`take_table`). A policy with
    `own_priority` orders its pods by their dialect's own priority (genius/priority) before
    spec.priority; other policies ignore that label, because anybody may set it. A policy with
    `raw_scores` reports its scores to kube-scheduler unchanged, as the original system did; other
    policies' scores are scaled to 0 to 10. `compat_system` is the system, by its name under
    `compat` in the configuration, whose flaws the option `compat: exact` keeps. Options are keyword
    arguments of the constructor."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    source: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = frozenset()
    inputs: Mapping[str, Any] = {}
    unsafe: str = ""
    harvests: ClassVar[bool] = False
    prices_every: PricesEvery | None = None
    unpriced: bool = False
    """Set by the engine while prices could not be computed for the present nodes: then no scores
    are asked for, and pods are placed on any node where they fit."""
    own_priority: ClassVar[bool] = False
    raw_scores: bool = False
    compat_system: ClassVar[str] = ""
    ties: ClassVar[Literal["first", "last"]] = "first"
    last_request_first: ClassVar[bool] = False
    is_built_in: ClassVar[bool] = True
    """True for Weft's own policies: tests check their answers, which are therefore not checked at
    each decision."""
    origin: ClassVar[PolicyOrigin | None] = None
    """Origin of a policy that is not Weft's own, set by its loader; None for Weft's own."""

    made_with: dict[str, Any]
    """Options with which the policy was created, so that a decisions file can create it again."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.is_built_in = cls.__module__.startswith("weft.core.policies.")

    def __new__(cls, *_args: Any, **options: Any) -> Self:
        """Record the options (keyword arguments) in `made_with`."""
        self = super().__new__(cls)
        self.made_with = options
        return self

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """Slowdown that the policy's pods tolerate; None: no pod is evicted for another pod's
        slowness."""
        return None

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """queueSort: return the sort key of a pod; smaller keys come first. Default: priority, then
        age."""
        return (*self.rank(pod), pod.created_ns)

    def rank(self, pod: PodRequest) -> tuple[int, int]:
        """Return the pod's priority, negated so that smaller comes first: its dialect's own
        priority with `own_priority`, then spec.priority."""
        return (-pod.queue_priority if self.own_priority else 0, -pod.priority)

    def pre_filter(self, shape: Shape) -> Shape:
        """preFilter: return the shape to place instead, such as whole GPUs for an exclusive
        policy."""
        return shape

    def filter_nodes(self, query: Query) -> Bools | None:
        """Filter: return a mask of nodes that this policy accepts, [n]; None accepts all."""
        return None

    def filter_devices(self, query: Query) -> Bools | None:
        """Filter: return a mask of devices that this policy accepts, [d]; None accepts all."""
        return None

    def contested(self, scores: Ints, waiting: int) -> bool:
        """Return True if `filter_pending` must be asked, given the scores of the nodes that fit.
        Default: True.

        `waiting` is the number of waiting pods, including this one."""
        return True

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools | None:
        """Filter: return a mask of devices that the pod may have in view of other waiting pods,
        [d]; None accepts all. Asked after all other filters, and never cached.

        `query` covers the best nodes that fit, if possible more than pods are waiting; `pending`
        has the shapes of the waiting pods in queue order, including this pod's. Asked only of
        policies that read `pending`."""
        return None

    def score_nodes(self, query: Query) -> Ints | None:
        """Score: return one score for each node, integers, higher is better, [n]; None: no
        opinion."""
        return None

    def score_devices(self, query: Query) -> Ints | None:
        """Score: return each device's score for `query.need`, integers, higher is better, [d];
        None: no opinion.

        A node's score is the score of its best fitting device plus `score_nodes`. Devices that do
        not fit may get any value. `ties` decides between equal devices."""
        return None

    def rate_options(self, options: PlacementOptions) -> Ints:
        """Score: return ratings of ways to place several GPU requests on one node, higher is
        better, [ways].

        A policy that overrides this rates the distinct ways to place a pod with several GPU
        requests, within the search's bound (Elastic's raters need this); for other policies the GPU
        requests are placed one after another. The rating must not depend on the devices' order."""
        raise NotImplementedError

    def bound_options(self, options: PlacementOptions, remaining: RemainingRequest) -> Ints:
        """Return upper bounds of the ratings that these partly placed pods can reach, [ways].
        Default: no bound. The tighter the bound, the more nodes are searched exactly."""
        return np.full(len(options.memory_free), NO_BOUND, dtype=np.int64)

    def normalize(self, scores: Ints) -> Ints:
        """normalizeScore: scale raw scores of the feasible nodes to 0–100. Default: by their
        range."""
        low, high = int(scores.min()), int(scores.max())
        if low == high:
            return np.zeros_like(scores)
        return np.asarray((scores - low) * 100 // (high - low))

    def choose_node(self, rows: Ints, key: str) -> int:
        """Choose one of the equally best nodes (in tie-break order): return an index into
        `rows`."""
        return 0

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose a device of the node if the policy scores none: return an index into `fits`.

        `query` is about that node alone; `fits` are the positions of devices that fit. For a pod
        with several GPU requests this is called once per GPU, in the state that the earlier calls
        left. Default: the fitting device with the least room, the first of equals."""
        return int(query.room.take(fits).argmin())

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Return the expected slowdowns of the pod and of its `co_residents` on a shared GPU,
        for the decision's record. Default: ()."""
        return ()

    def score_parts(self, query: Query, devices: Sequence[int]) -> tuple[ScorePart, ...]:
        """Return the parts of one place's score; default: none.

        `query` is about the place's node alone, `devices` are positions of its devices."""
        return ()

    def take_input(self, name: str, value: Any) -> None:
        """Take a new input of this name, of the type stated in `inputs`; cached answers are
        dropped."""

    def prepare_input(self, name: str, value: Any, table: LedgerTable) -> None:
        """Compute the slow part of taking this input. This runs in a thread parallel to decisions,
        and must not change the policy. Default: nothing."""

    def take_turnover(self, part: float) -> None:
        """Take the turnover, before each `take_table`: the part (0 to 1) of what pods hold that
        ended pods had freed before (`core/engine/pricing.py`)."""

    def take_table(self, table: LedgerTable) -> None:
        """Take the state of the whole cluster, for a policy with `prices_every`: at the start,
        after each input, and as pods arrive (`core/engine/pricing.py`); cached answers are dropped.
        Change the policy only after everything is computed: if this raises, the former prices stay
        in use for the same nodes."""


def draw(key: str, choices: int) -> int:
    """Draw a number below `choices`, uniformly, and equal for equal keys on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % choices


# --- how policies are asked ---------------------------------------------------------------------

MOST_SCORE = 1 << 50
"""Largest score: a larger one leaves no bits for a device's number in 64 bits."""
_INT64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
_WHOLE_NUMBERS = "return whole numbers (np.int64), such as (1000 * score).astype(np.int64)"
_MASK = "return booleans, such as score > 0"
_DIVIDE = "divide only where the divisor is not 0: np.divide(a, b, out=…, where=b != 0)"


class _Things:
    """The nodes, GPUs or ways for which a policy's answer has one value each; names them in
    errors."""

    __slots__ = ("count", "hook", "policy", "query", "word")

    def __init__(
        self, policy: Policy, hook: str, word: str, count: int, query: Query | None = None
    ) -> None:
        self.policy, self.hook, self.word, self.count = policy, hook, word, count
        self.query = query

    def name(self, at: int) -> str:
        """Return the name of the node, GPU or way at this position of the answer."""
        if self.query is None:
            return f"{self.word} {at}"
        gpu = ""
        if self.word == "GPU":
            gpu, at = f"GPU {self.query.device_local[at]} of ", int(self.query.device_node[at])
        row = at if self.query.rows is None else int(self.query.rows[at])
        return f"{gpu}node {self.query.table.nodes[row].name}"

    def error(self, what: str) -> PolicyError:
        """Return an error about a wrong answer."""
        return PolicyError(self.policy.name, self.hook, what)


def node_scores(policies: Sequence[Policy], query: Query) -> list[Ints]:
    """Return each policy's scores of the nodes, [n]; zeros for a policy that does not score
    nodes."""
    found = [score_nodes(policy, query) for policy in policies]
    return [np.zeros(query.n, dtype=np.int64) if each is None else each for each in found]


def feasible_scores(
    policies: Sequence[Policy], device_scorer: Policy | None, query: Query, fits: Bools
) -> tuple[list[Ints], Ints]:
    """Return each policy's scores of nodes and of their best devices, [n], and the position of the
    device that the `device_scorer` rates best on each node.

    Devices are scored on feasible nodes only, unless most are feasible: then picking their columns
    out costs more than it saves. Scores of nodes that do not fit are arbitrary.
    """
    feasible = fits.nonzero()[0]
    scores: list[Ints] = []
    position = np.zeros(query.n, dtype=np.int64)
    if len(feasible) == 0:
        return [np.full(query.n, NEVER, dtype=np.int64) for _ in policies], position
    most = query.rows is None and 4 * len(feasible) >= 3 * query.n
    part = query if most or len(feasible) == query.n else query.only(feasible)
    for policy in policies:
        of_nodes, by_device = score_nodes(policy, part), score_devices(policy, part)
        score = np.zeros(part.n, dtype=np.int64) if of_nodes is None else of_nodes
        if by_device is not None:
            best, where = part.best(by_device, last=policy.ties == "last")
            score = score + best
            if policy is device_scorer:
                position[slice(None) if part is query else feasible] = where
        if part is not query:
            score, of_some = np.full(query.n, NEVER, dtype=np.int64), score
            score[feasible] = of_some
        scores.append(score)
    return scores, position


def score_nodes(policy: Policy, query: Query) -> Ints | None:
    """Return the policy's scores of the nodes, [n]; None: no opinion, or its prices could not be
    computed."""
    if policy.unpriced:
        return None
    scores, is_column = _ask_column(policy, "score_nodes", _INT64, query)
    if scores is None or (policy.is_built_in and is_column):
        return scores  # type: ignore[no-any-return]
    return _scores(_Things(policy, "score_nodes", "node", query.n, query), scores)


def score_devices(policy: Policy, query: Query) -> Ints | None:
    """Return the policy's scores of the devices, [d]; None: no opinion; all 0 while its prices
    could not be computed."""
    if policy.unpriced:
        return np.zeros(query.d, dtype=np.int64)
    scores, is_column = _ask_column(policy, "score_devices", _INT64, query)
    if scores is None or (policy.is_built_in and is_column):
        return scores  # type: ignore[no-any-return]
    things = _Things(policy, "score_devices", "GPU", query.d, query)
    return _scores(things, scores, query.device_fits)


def filter_nodes(policy: Policy, query: Query) -> Bools | None:
    """Return a mask of the nodes that the policy accepts, [n]; None accepts all."""
    mask, is_column = _ask_column(policy, "filter_nodes", _BOOL, query)
    if mask is None or is_column:
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_nodes", "node", query.n, query), mask)


def filter_devices(policy: Policy, query: Query) -> Bools | None:
    """Return a mask of the devices that the policy accepts, [d]; None accepts all."""
    mask, is_column = _ask_column(policy, "filter_devices", _BOOL, query)
    if mask is None or is_column:
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_devices", "GPU", query.d, query), mask)


def filter_pending(policy: Policy, query: Query, pending: Sequence[Shape]) -> Bools | None:
    """Return a mask of the devices that the pod may have in view of other waiting pods, [d];
    None accepts all."""
    mask, is_column = _ask_column(policy, "filter_pending", _BOOL, query, pending)
    if mask is None or is_column:
        return mask  # type: ignore[no-any-return]
    return _mask(_Things(policy, "filter_pending", "GPU", query.d, query), mask)


def rate_options(policy: Policy, options: PlacementOptions) -> Ints:
    """Return the policy's ratings of ways to place several GPU requests, [ways]."""
    ratings = _ask(policy, "rate_options", options)
    return _ratings(policy, "rate_options", ratings, len(options.memory_free))


def bound_options(policy: Policy, options: PlacementOptions, left: RemainingRequest) -> Ints:
    """Return the policy's upper bounds of the ratings of partly placed pods, [ways]."""
    bounds = _ask(policy, "bound_options", options, left)
    return _ratings(policy, "bound_options", bounds, len(options.memory_free))


def normalize(policy: Policy, scores: Ints) -> Ints:
    """Return the policy's scores scaled to 0 to 100."""
    normal = _ask(policy, "normalize", scores)
    return _ratings(policy, "normalize", normal, len(scores), "node")


def choose_node(policy: Policy, rows: Ints, key: str) -> int:
    """Return the policy's choice of a node: an index into `rows`."""
    return _index(policy, "choose_node", _ask(policy, "choose_node", rows, key), len(rows))


def choose_device(policy: Policy, query: Query, fits: Ints, key: str) -> int:
    """Return the policy's choice of a device: an index into `fits`."""
    chosen = _ask(policy, "choose_device", query, fits, key)
    return _index(policy, "choose_device", chosen, len(fits))


def queue_key(policy: Policy, pod: PodRequest) -> tuple[int, ...]:
    """Return the pod's sort key in the queue: integers, so that any two keys can be compared."""
    key = _ask(policy, "queue_key", pod)
    try:
        return tuple(map(operator.index, key))
    except TypeError:
        what = f"returned {_shown(key)}; return a tuple of whole numbers"
        raise PolicyError(policy.name, "queue_key", what) from None


class QueueOrder(NamedTuple):
    """A pod's order in the queue: `key` compares it with pods of its profile, `rank` is its negated
    priority (`Policy.rank`); smaller comes first. `came_ns` is the time from which its age
    counts."""

    key: tuple[int, ...]
    rank: tuple[int, int]
    came_ns: int


def queue_order(policy: Policy, pod: PodRequest) -> QueueOrder:
    """Return the pod's order in the queue, by its age there (`PodRequest.came_ns`)."""
    as_old = replace(pod, created_ns=pod.came_ns) if pod.gang else pod
    return QueueOrder(queue_key(policy, as_old), policy.rank(pod), as_old.created_ns)


def pre_filter(policy: Policy, shape: Shape) -> Shape:
    """Return the shape that the policy places instead."""
    instead = _ask(policy, "pre_filter", shape)
    if isinstance(instead, Shape):
        return instead
    what = f"returned {_shown(instead)}; return the Shape to place, or the one it was given"
    raise PolicyError(policy.name, "pre_filter", what)


def take_input(policy: Policy, name: str, value: Any) -> None:
    """Pass the policy an input."""
    _ask(policy, "take_input", name, value)


def take_table(policy: Policy, table: LedgerTable) -> None:
    """Have the policy compute its prices from the cluster's state."""
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


def _ask_column(
    policy: Policy, hook: str, dtype: npt.DTypeLike, query: Query, *more: Any
) -> tuple[Any, bool]:
    """Return the answer, and True if it is a column as it should be: of this type, one value for
    each node or device."""
    value = _ask(policy, hook, query, *more)
    if type(value) is not np.ndarray or value.dtype is not dtype:
        return value, False
    return value, value.shape == (query.n if hook.endswith("nodes") else query.d,)


def _broke_off(policy: Policy, error: Exception) -> str:
    """Describe the exception, with the last line of the policy's own code involved."""
    place, step = "", error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if frame.f_globals.get("__name__") == type(policy).__module__:
            file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f" ({file}, line {step.tb_lineno})"
        step = step.tb_next
    advice = f"; {_DIVIDE}" if isinstance(error, FloatingPointError) else ""
    return f"{type(error).__name__}: {error}{place}{advice}"


def _column(things: _Things, value: Any, kinds: str, wanted: str) -> npt.NDArray[Any]:
    """Return the answer as an array; `PolicyError` if its length or type is wrong."""
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
    """Return the position of the value that best shows the fault: not finite, not whole, or the
    first."""
    if array.dtype.kind != "f":
        return 0
    for wrong in (~np.isfinite(array), array != np.trunc(array)):
        if wrong.any():
            return int(wrong.argmax())
    return 0


def _scores(things: _Things, value: Any, counts: Bools | None = None) -> Ints:
    """Return scores as 64-bit integers; for policies that are not Weft's own, `PolicyError` if a
    score is out of bounds (where `counts` is True, if given)."""
    array = _column(things, value, "iu", _WHOLE_NUMBERS)
    if things.policy.is_built_in:
        return array.astype(np.int64, copy=False)
    too_large = (array > MOST_SCORE) | ((array < -MOST_SCORE) & (array != NEVER))
    if counts is not None:
        too_large &= counts
    if too_large.any():
        at = int(too_large.argmax())
        what = f"returned {array[at]} for {things.name(at)}; scores must be within ±2**50"
        raise things.error(what)
    return array.astype(np.int64, copy=False)


def _mask(things: _Things, value: Any) -> Bools:
    return _column(things, value, "b", _MASK).astype(np.bool_, copy=False)


def _ratings(policy: Policy, hook: str, value: Any, count: int, word: str = "way") -> Ints:
    if type(value) is np.ndarray and value.dtype is _INT64 and value.shape == (count,):
        return value
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
    """Return a value for an error message: short, and equal in every process."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if isinstance(value, tuple | list) and len(value) <= 8:
        return f"({', '.join(map(_shown, value))})"
    return f"a {type(value).__name__}"
