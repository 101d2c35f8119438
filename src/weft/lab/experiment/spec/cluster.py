"""The form of an experiment on a cluster: which jobs, which schedulers, where and how to look.

The same file is also simulated, where its schedulers name a `policy` and its jobs say how long
they run: nodes are then those of `simulated`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from weft.files.form import Section
from weft.model import BadInputError
from weft.model.nearest import unknown

JobName = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?$",
        extra={"refused": "{} is no name; write up to 47 lower-case letters, digits and -"},
    ),
]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Mib = Annotated[int, Meta(ge=0, le=10_000_000)]
Percents = Annotated[tuple[Annotated[int, Meta(ge=0, le=1_000)], ...], Meta(min_length=1)]
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"


class ClusterJob(Section, frozen=True, kw_only=True):
    """`count` Jobs of one container.

    `memory_mib` of GPU memory and `gpus` are what they ask for, each scheduler in its own words.
    `arrival_seconds` has one entry a Job; without it they come as the workload says.
    `run_seconds` is how long one runs, for simulations alone. `annotations` are the pod's.
    """

    name: JobName
    image: Annotated[str, Meta(min_length=1)]
    command: tuple[str, ...] = ()
    memory_mib: Mib = 0
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    arrival_seconds: tuple[Seconds, ...] = ()
    run_seconds: Seconds | None = None
    annotations: dict[str, str] = field(default_factory=dict)


class ClusterJobs(Section, frozen=True, kw_only=True, tag_field="kind", tag="cluster-jobs"):
    """Jobs of a cluster: a list of one's own, or Ferikoglou's JSON (`models`).

    Jobs without a time come in an order and at delays drawn by seed, uniform between
    `delay_seconds`. Axis: `percents` by which they ask for more memory than `memory_mib` says.
    """

    models: str = ""
    jobs: tuple[ClusterJob, ...] = ()
    percents: Percents = (0,)
    delay_seconds: tuple[Seconds, Seconds] = (20.0, 40.0)


class GpuRequestForm(Section, frozen=True):
    """How a scheduler is asked for GPUs: a `resource` of the container, or a `label` of the pod.

    `unit`: the whole cards, MiB or GiB of memory that it counts; `most`: that at most, 0 for no
    bound.
    """

    resource: str = ""
    label: str = ""
    unit: Literal["cards", "MiB", "GiB"] = "cards"
    most: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class ClusterScheduler(Section, frozen=True, kw_only=True):
    """A scheduler of the cluster.

    `reporting_controller` is what its events say (left out: its `scheduler_name`), `annotations`
    are what its binding leaves on every pod: both are how a probe tells that it is in the path.
    `mend` is the command that puts it there. `policy` stands for it in simulations.
    """

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    scheduler_name: str = "default-scheduler"
    request: GpuRequestForm
    reporting_controller: str = ""
    annotations: tuple[str, ...] = ()
    mend: str = ""
    policy: str = ""

    @property
    def says(self) -> str:
        """The reporter that its events name."""
        return self.reporting_controller or self.scheduler_name


class PrometheusAccess(Section, frozen=True):
    """The metrics server of the nodes' GPUs, as `telemetry` of Weft's configuration has it."""

    url: str
    selector: str = ""
    bearer_token_file: str = ""
    authority_file: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0, le=3_600)] = 30.0


class SimulatedNodes(Section, frozen=True):
    """The nodes of the same experiment in simulation."""

    nodes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=1, le=10_000_000)] = 32_510
    model: str = "V100"


class Cluster(Section, frozen=True, kw_only=True):
    """Where the experiment runs: one turn a scheduler, in a namespace of its own.

    `kubeconfig` and `context` are kubectl's where left out; `~` and `$NAME` are expanded. Pods run
    on nodes with all labels of `node_selector`. A probe gets `probe_seconds` to run `probe_image`,
    a whole turn `turn_seconds`; every `look_seconds` Jobs and pods are read.
    """

    schedulers: Annotated[tuple[ClusterScheduler, ...], Meta(min_length=1)]
    kubeconfig: str = ""
    context: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    prometheus: PrometheusAccess | None = None
    host_ipc: bool = False
    probe_image: str = PAUSE_IMAGE
    probe_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    turn_seconds: Annotated[float, Meta(gt=0, le=1e7)] = 86_400.0
    look_seconds: Annotated[float, Meta(ge=0.1, le=600)] = 1.0
    simulated: SimulatedNodes = SimulatedNodes()

    def scheduler(self, name: str) -> ClusterScheduler:
        """The one of this name; `check_cluster` has seen that it is there."""
        return next(each for each in self.schedulers if each.name == name)


def check_cluster(workload: object, cluster: Cluster | None, schedulers: Sequence[str]) -> None:
    """Checks what the types and their bounds cannot say."""
    if not isinstance(workload, ClusterJobs):
        if cluster is not None:
            raise BadInputError("cluster", "is for `workload.kind: cluster-jobs`; leave it out")
        return
    if cluster is None:
        raise BadInputError("cluster", "is missing: cluster-jobs run on one; name its schedulers")
    names = [each.name for each in cluster.schedulers]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise BadInputError(f"cluster.schedulers[{at}].name", f"{name!r} stands there twice")
        _check_request(cluster.schedulers[at].request, f"cluster.schedulers[{at}].request")
    for at, name in enumerate(schedulers):
        if name not in names:
            what = f"{unknown(name, names)}; they are described under cluster.schedulers"
            raise BadInputError(f"schedulers[{at}]", what)
    _check_jobs(workload)


def _check_request(request: GpuRequestForm, at: str) -> None:
    if bool(request.resource) == bool(request.label):
        raise BadInputError(at, "names a resource or a label: write one of the two")


def _check_jobs(workload: ClusterJobs) -> None:
    if bool(workload.models) == bool(workload.jobs):
        raise BadInputError("workload", "has `models` or `jobs`: write one of the two")
    low, high = workload.delay_seconds
    if low > high:
        raise BadInputError("workload.delaySeconds", f"{low:g} is more than {high:g}")
    _no_doubles("workload.jobs", [job.name for job in workload.jobs])
    for at, job in enumerate(workload.jobs):
        if job.arrival_seconds and len(job.arrival_seconds) != job.count:
            what = f"has {len(job.arrival_seconds)} times for {job.count} Jobs; write one for each"
            raise BadInputError(f"workload.jobs[{at}].arrivalSeconds", what)


def _no_doubles(at_field: str, values: Sequence[Any]) -> None:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise BadInputError(f"{at_field}[{at}]", f"{value!r} stands there twice")
