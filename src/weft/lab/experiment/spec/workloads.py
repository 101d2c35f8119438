"""Forms of an experiment's workload: its jobs, their arrivals, and assumptions about them.

Fields with several levels are axes. Fields that name files are data: paths, or `${NAME}/…`."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field
from msgspec.structs import fields

from weft.files.form import Section
from weft.files.queue_settings import QueuesSettings
from weft.lab.experiment.spec.cluster import ClusterJobs
from weft.lab.simulate.gang_jobs import SHARED_RATIO
from weft.lab.simulate.scenario import GRACE_NS
from weft.lab.simulate.sharing.arrival_times import ArrivalLaw
from weft.lab.simulate.sharing.gpus import ComputeSharing, PowerModel
from weft.lab.simulate.sharing.pipeline import read_spoof
from weft.model import BadInputError
from weft.model.request import LATENCY_CRITICAL

_NAME = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[
    str,
    Meta(
        pattern=_NAME,
        extra={"refused": "{} is not a name; write up to 63 lower-case letters, digits and -"},
    ),
]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Gpus = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Mib = Annotated[int, Meta(ge=0, le=100_000_000)]
Percent = Annotated[int, Meta(ge=0, le=1_000)]
Load = Annotated[float, Meta(gt=0, le=100)]
MixName = Literal["ssd", "rigid", "mixed", "peaky", "late", "grown"]
PredictorName = Literal["trained", "ridge", "truth"]

AXES = {
    "mixes": "mix",
    "percents": "percent",
    "loads": "load",
    "demands": "demand",
    "faults": "faults",
    "assumptions": "assumption",
    "predictions": "predictions",
    "feedback": "feedback",
    "critical_shares": "critical-share",
}
"""Names of axes, by the workload's field that lists their levels; cells are ordered by axes in this
order."""
NAMED_AXES = ("faults", "assumptions", "predictions", "feedback")
"""Fields whose levels have a name and settings."""
DATA_FIELDS = ("table", "mystic", "nodes", "pods", "order", "jobs_file", "manifests", "models")
"""Fields of workloads that name files, apart from the file of `arrivals`."""


class MetricFaults(Section, frozen=True):
    """A level of the axis `faults`: faults of metrics between a GPU and the scheduler."""

    name: Name = "sound"
    delay_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    dropped: Ratio = 0.0
    missing: Ratio = 0.0
    noise: Annotated[float, Meta(ge=0, le=100)] = 0.0
    spoof: str = ""
    frozen_seconds: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    frozen_busy: bool = False


class TimeAssumptions(Section, frozen=True):
    """A level of the axis `assumptions`: how containers share a GPU, and whether programs are
    known.

    `compute`: with `measured` only measured slowdowns count; with `proportional` time grows at
    least by the ratio of needed compute to the GPU's. `computeRatio` is then each container's need,
    instead of its job's; the GPU's metrics show this need only with `computeShown`, since metrics
    may not cover the scarce part of the GPU. Without `earlierRuns` pods do not name their
    program."""

    name: Name = "as-measured"
    compute: Literal["measured", "proportional"] = "measured"
    compute_ratio: Ratio | None = None
    compute_shown: bool = False
    earlier_runs: bool = True

    @property
    def sharing(self) -> ComputeSharing:
        """The assumption about compute, as the simulator's `ComputeSharing`."""
        return ComputeSharing(self.compute == "proportional", self.compute_ratio)


class PoorPredictions(Section, frozen=True):
    """A level of the axis `predictions`: faults of the predictions that policies get.

    For a share `missing` of the applications no pair was measured, so that they are unknown (1:
    all). Every predicted slowdown and its bound are multiplied by a lognormal factor; `noise` is
    the sigma of its logarithm."""

    name: Name = "as-learnt"
    missing: Ratio = 0.0
    noise: Annotated[float, Meta(ge=0, le=4)] = 0.0


class ProgressFeedback(Section, frozen=True):
    """A level of the axis `feedback`: how progress is polled, and how readings are used.

    Every `periodSeconds` each job's speed is read, with a lognormal error of sigma `noise`; a share
    `missing` of readings is lost. Readings correct the predictions (`teach`), and may evict pods
    that slow latency-critical jobs (`evict`); without both they are only counted. An evicted job
    loses its work, unless it `keepsWork`."""

    name: Name = "watched"
    teach: bool = True
    evict: bool = False
    keeps_work: bool = False
    noise: Annotated[float, Meta(ge=0, le=4)] = 0.05
    missing: Ratio = 0.0
    period_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] = 15.0


class UniformArrivals(Section, frozen=True, tag_field="kind", tag="uniform"):
    """Gaps between arrivals, drawn uniformly between two lengths; an axis `loads` scales both."""

    least_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 20.0
    most_seconds: Seconds = 40.0

    @property
    def mean_seconds(self) -> float:
        """The mean gap in seconds."""
        return (self.least_seconds + self.most_seconds) / 2

    @property
    def law(self) -> ArrivalLaw:
        """The distribution of gaps, with lengths in units of the mean gap."""
        mean = self.mean_seconds
        return ArrivalLaw("uniform", self.least_seconds / mean, self.most_seconds / mean)


class PoissonArrivals(Section, frozen=True, tag_field="kind", tag="poisson"):
    """Independent arrivals; the mean gap defaults to the workload's own."""

    mean_seconds: Seconds | None = None

    @property
    def law(self) -> ArrivalLaw:
        """The distribution of gaps."""
        return ArrivalLaw("poisson")


class PhillyLikeArrivals(Section, frozen=True, tag_field="kind", tag="philly-like"):
    """Bursts and a daily rhythm, as in shared training clusters; fitted to no trace."""

    mean_seconds: Seconds | None = None
    sigma: Annotated[float, Meta(ge=0, le=4)] = 1.5
    day_swing: Annotated[float, Meta(ge=0, le=0.99)] = 0.5

    @property
    def law(self) -> ArrivalLaw:
        """The distribution of gaps."""
        return ArrivalLaw("bursty", sigma=self.sigma, day_swing=self.day_swing)


class TracedArrivals(Section, frozen=True, tag_field="kind", tag="trace"):
    """The gaps between arrivals in a trace, from a different starting point for each seed."""

    file: str
    mean_seconds: Seconds | None = None


Arrivals = UniformArrivals | PoissonArrivals | PhillyLikeArrivals | TracedArrivals


class CardPower(Section, frozen=True):
    """The power of a GPU in watts: idle + context (if memory is in use) + busy · a ** gamma, with a
    the GPU's activity, 0 to 1."""

    idle_watts: Annotated[float, Meta(ge=0, le=1e5)]
    context_watts: Annotated[float, Meta(ge=0, le=1e5)] = 10.0
    busy_watts: Annotated[float, Meta(ge=0, le=1e5)] = 200.0
    gamma: Annotated[float, Meta(gt=0, le=10)] = 1.0

    @property
    def model(self) -> PowerModel:
        """The power, as the simulator's `PowerModel`."""
        return PowerModel(self.idle_watts, self.context_watts, self.busy_watts, self.gamma)


class SimulatedJobs(Section, frozen=True, kw_only=True):
    """Base of all workloads of jobs that share GPUs.

    `arrivals` default to the workload's own. Nodes pull an image of `imageMib` when they first run
    a program, one after another at `pullMibPerSecond` (0: images are present). `power` defaults to
    the GPU model's."""

    arrivals: Arrivals | None = None
    assumptions: tuple[TimeAssumptions, ...] = ()
    image_mib: Mib = 0
    pull_mib_per_second: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    power: CardPower | None = None


class WatchedJobs(SimulatedJobs, frozen=True, kw_only=True):
    """Base of workloads whose GPUs are scraped while they run. Axis: `faults` of the metrics."""

    faults: Annotated[tuple[MetricFaults, ...], Meta(min_length=1)] = (MetricFaults(),)
    harvest_limit: Annotated[float, Meta(ge=1, le=100)] = 4.0
    scrape_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] = 5.0


class OverprovisionedJobs(
    WatchedJobs, frozen=True, kw_only=True, tag_field="kind", tag="overprovisioned"
):
    """Thirty inference jobs per GPU that request more memory than they use (Ferikoglou et al.).

    Axes: `percents` of over-provisioning, `loads` for faster or slower arrivals, `faults`."""

    percents: Annotated[tuple[Percent, ...], Meta(min_length=1)] = (0, 50, 100, 150, 200, 250)
    loads: tuple[Load, ...] = ()
    mix: MixName = "ssd"
    cards: Gpus = 1


class MeasuredPairs(SimulatedJobs, frozen=True, kw_only=True, tag_field="kind", tag="pairs"):
    """Jobs that slow each other down as measured pairs did (Gavel's CSV, Co-scheML's JSON).

    Axes: `loads`, arrival rate × mean time alone ÷ GPUs; faults of `predictions`; `feedback` from
    jobs' progress; `criticalShares`, the shares of jobs that are latency-critical, drawn by seed.
    `told` names the predictor whose predictions policies get, `mystic` the file of distances for
    the baseline Mystic in Co-scheML. `watched` turns on progress feedback that corrects
    predictions, without the axis `feedback`."""

    table: str
    mystic: str = ""
    source: str = "oracle_throughputs"
    gpu: str = "v100"
    loads: Annotated[tuple[Load, ...], Meta(min_length=1)] = (0.7, 0.9, 1.1)
    gpus: Gpus = 16
    jobs: Count = 400
    mean_seconds: Seconds = 3_600.0
    durations: Literal["fixed", "exponential", "lognormal"] = "lognormal"
    job_class: Literal["best-effort", "batch", "latency-critical"] = "best-effort"
    expected_error: Annotated[float, Meta(ge=0, le=1)] | None = None
    told: PredictorName = "trained"
    watched: bool = False
    predictions: tuple[PoorPredictions, ...] = ()
    feedback: tuple[ProgressFeedback, ...] = ()
    critical_shares: tuple[Ratio, ...] = ()


class KnotsCluster(
    WatchedJobs, frozen=True, kw_only=True, tag_field="kind", tag="kube-knots-cluster"
):
    """Kube-Knots' application mixes on P100s with 16 GB, one per node; queries are late at 150 ms.

    Axes: `mixes` 1 to 3, `loads` (default: each mix's own), `faults`."""

    mixes: Annotated[tuple[Annotated[int, Meta(ge=1, le=3)], ...], Meta(min_length=1)] = (1, 2, 3)
    loads: tuple[Load, ...] = ()
    gpus: Gpus = 10
    jobs: Count = 240


class KnotsTraining(WatchedJobs, frozen=True, kw_only=True, tag_field="kind", tag="kube-knots-dl"):
    """Kube-Knots' simulation: training and inference jobs over some hours, on nodes of eight GPUs.

    A training job has one to eight workers, each on one GPU or on a share of one; the workers
    arrive together, and each counts as a job. Axis: `faults`."""

    gpus: Gpus = 256
    training: Count = 520
    inference: Count = 1_400
    hours: Annotated[float, Meta(gt=0, le=10_000)] = 12.0
    scrape_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] = 60.0


class ListedCluster(WatchedJobs, frozen=True, kw_only=True):
    """Base of workloads that do not define a cluster: the cluster has `gpus` GPUs of one model, or
    the `nodes` of a CSV file in openb's form.

    `gpuMib` is a GPU's memory if there is no node list."""

    nodes: str = ""
    gpus: Gpus = 4
    node_gpus: Gpus = 4
    gpu_model: str = "V100"
    gpu_mib: Annotated[int, Meta(ge=1, le=10_000_000)] = 32_510
    loads: tuple[Load, ...] = ()


class ListedJobs(ListedCluster, frozen=True, kw_only=True, tag_field="kind", tag="job-list"):
    """A user's own jobs, with their requests, use over time and duration: YAML, or CSV.

    Axes: `percents` by which requests exceed the list's, `loads`, `faults`."""

    jobs_file: str
    percents: Annotated[tuple[Percent, ...], Meta(min_length=1)] = (0,)


class InferenceList(ListedCluster, frozen=True, kw_only=True, tag_field="kind", tag="mlperf-list"):
    """Inference jobs from the list of Ferikoglou et al.'s generator (JSON).

    Each program is run for the listed numbers of queries and replicas. `querySeconds` is the time
    of one query alone, by model; `startSeconds` the time to load. Axes: `percents`, `loads`,
    `faults`."""

    jobs_file: str
    percents: Annotated[tuple[Percent, ...], Meta(min_length=1)] = (0, 50, 100, 150, 200, 250)
    query_seconds: dict[str, Seconds] = field(default_factory=dict)
    start_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 17.4
    query_limit_seconds: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class ManifestPods(ListedCluster, frozen=True, kw_only=True, tag_field="kind", tag="pods"):
    """Pods of manifests (a file, or a folder of them), read as by `weft parse`.

    Manifests lack pods' use and run time, so the pods use `usedRatio` of their memory request and
    `computeRatio` of the SMs, for `seconds`. Each pod arrives `copies` times. Axes: `loads`,
    `faults`."""

    manifests: str
    copies: Count = 1
    used_ratio: Annotated[float, Meta(ge=0, le=10)] = 1.0
    compute_ratio: Ratio = 0.3
    seconds: Seconds = 600.0


class OpenbPods(Section, frozen=True, tag_field="kind", tag="openb"):
    """Pods of a trace in openb's form that never leave (`inflation`) or arrive and leave (`timed`).

    `order` is a file of published arrival orders. Axis, for inflation: `demands`, the GPUs that all
    arriving pods request, in percent of the cluster's.

    For timed: `queues` of teams, as in the scheduler's configuration; with `preempt` pods preempt
    others as in the scheduler, and a preempted pod runs on for `grace_seconds`."""

    nodes: str
    pods: str
    order: str = ""
    mode: Literal["inflation", "timed"] = "inflation"
    demands: Annotated[tuple[Annotated[float, Meta(gt=0, le=1_000)], ...], Meta(min_length=1)] = (
        130.0,
    )
    compress: Annotated[float, Meta(gt=0)] = 1.0
    queues: QueuesSettings = QueuesSettings()
    preempt: bool = True
    grace_seconds: Annotated[float, Meta(ge=0, le=1e9)] = GRACE_NS / 1e9


class GangJobs(Section, frozen=True, kw_only=True, tag_field="kind", tag="gangs"):
    """Jobs of 1 to 32 pods that start together, with Philly-like sizes and durations.

    The cluster is every `everyNode`-th of the `nodes` of openb's CSV; sharing a GPU does not slow
    jobs. In `sharedRatio` of the jobs the pods request a part of a GPU. Axis: `loads`, arrival rate
    × mean GPU time requested ÷ GPUs."""

    nodes: str
    every_node: Annotated[int, Meta(ge=1, le=10_000)] = 1
    loads: Annotated[tuple[Load, ...], Meta(min_length=1)] = (0.7, 0.9, 1.1)
    jobs: Count = 400
    shared_ratio: Ratio = SHARED_RATIO


class WaitingPods(Section, frozen=True, kw_only=True, tag_field="kind", tag="queue"):
    """Pods that arrive, wait and leave, in two mixes of openb's pods, under queue disciplines.

    In each run `podsARun` pods arrive, placed by `policy` on every `everyNode`-th of the `nodes` of
    openb's CSV. A pod that is moved repeats `restartSeconds` of its work. Axes: `mixes`; `loads`,
    arrival rate × mean GPU time requested ÷ GPUs. The first `warm_up` of the pods (0 to 1) only
    fill the cluster: measures leave them out."""

    nodes: str
    every_node: Annotated[int, Meta(ge=1, le=10_000)] = 1
    warm_up: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    mixes: Annotated[tuple[Literal["shares", "many-gpu"], ...], Meta(min_length=1)] = (
        "shares",
        "many-gpu",
    )
    loads: Annotated[tuple[Load, ...], Meta(min_length=1)] = (0.8, 0.9, 1.0)
    pods_a_run: Count = 2_000
    policy: str = "least-stranding"
    restart_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 60


Workload = (
    OverprovisionedJobs
    | MeasuredPairs
    | KnotsCluster
    | KnotsTraining
    | ListedJobs
    | InferenceList
    | ManifestPods
    | OpenbPods
    | GangJobs
    | WaitingPods
    | ClusterJobs
)


def levels_of(workload: Workload) -> dict[str, tuple[Any, ...]]:
    """Return the levels of each axis that the workload has, by the axis' name."""
    if isinstance(workload, OpenbPods) and workload.mode == "timed":
        return {}
    by_axis = {axis: getattr(workload, name, ()) for name, axis in AXES.items()}
    return {axis: levels for axis, levels in by_axis.items() if levels}


def data_texts(workload: Workload) -> dict[str, str]:
    """Return the files that the workload names, as written, by field."""
    written = {name: getattr(workload, name, "") for name in DATA_FIELDS}
    if isinstance(arrivals := getattr(workload, "arrivals", None), TracedArrivals):
        written["arrivals.file"] = arrivals.file
    return {name: text for name, text in written.items() if text}


def check_workload(workload: Workload) -> None:
    """Check rules that types and bounds cannot express; `BadInputError` names the field."""
    for name, text in data_texts(workload).items():
        if "\0" in text:
            raise BadInputError(f"workload.{name}", f"{text!r} is not a path")
    for axis in fields(workload):
        if axis.name in AXES:
            levels = getattr(workload, axis.name)
            named = [getattr(level, "name", level) for level in levels]
            no_doubles(f"workload.{axis.encode_name}", named)
    if isinstance(workload, SimulatedJobs):
        _check_simulated(workload)


def no_doubles(where: str, values: Any) -> None:
    """Check that no value is repeated; `BadInputError` names the position of the repetition."""
    for at, value in enumerate(values):
        if value in values[:at]:
            raise BadInputError(f"{where}[{at}]", f"{value!r} is listed twice")


def _check_simulated(workload: SimulatedJobs) -> None:
    arrivals = workload.arrivals
    if isinstance(arrivals, UniformArrivals) and arrivals.least_seconds > arrivals.most_seconds:
        what = f"{arrivals.least_seconds:g} is more than mostSeconds, {arrivals.most_seconds:g}"
        raise BadInputError("workload.arrivals.leastSeconds", what)
    if workload.image_mib and not workload.pull_mib_per_second:
        what = "has no effect alone; also set pullMibPerSecond"
        raise BadInputError("workload.imageMib", what)
    for at, level in enumerate(workload.assumptions):
        if level.compute_ratio is not None and level.compute != "proportional":
            where = f"workload.assumptions[{at}].computeRatio"
            raise BadInputError(where, "requires compute: proportional")
        if level.compute_shown and level.compute_ratio is None:
            where = f"workload.assumptions[{at}].computeShown"
            raise BadInputError(where, "needs computeRatio, which metrics then show")
        if isinstance(workload, MeasuredPairs) and (
            level.compute == "proportional" and level.compute_ratio is None
        ):
            where = f"workload.assumptions[{at}].compute"
            raise BadInputError(where, "needs computeRatio: the pairs' table has no compute needs")
    if isinstance(workload, MeasuredPairs):
        _check_pairs(workload)
    if isinstance(workload, WatchedJobs):
        for at, faults in enumerate(workload.faults):
            _check_faults(faults, f"workload.faults[{at}]")


def _check_pairs(workload: MeasuredPairs) -> None:
    if workload.watched and workload.feedback:
        raise BadInputError(
            "workload.watched", "has no effect beside `feedback`; remove one of them"
        )
    if workload.critical_shares and workload.job_class == LATENCY_CRITICAL:
        what = "has no effect if all jobs are latency-critical; change jobClass"
        raise BadInputError("workload.criticalShares", what)
    for at, level in enumerate(workload.feedback):
        if level.keeps_work and not level.evict:
            where = f"workload.feedback[{at}].keepsWork"
            raise BadInputError(where, "applies to evicted jobs; also set evict: true")


def _check_faults(faults: MetricFaults, at: str) -> None:
    try:
        read_spoof(faults.spoof)
    except BadInputError as error:
        raise BadInputError(f"{at}.spoof", f"{faults.spoof!r} {error.problem}") from None
    if faults.frozen_busy and faults.frozen_seconds is None:
        what = "has no effect alone; also set frozenSeconds"
        raise BadInputError(f"{at}.frozenBusy", what)
