"""The form of the configuration file: each setting's type, bounds, default and reason, in one
place.

A reason says what the setting does, and why its default was chosen."""

import sys
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from weft.cluster.config.agent import AgentSettings
from weft.cluster.config.gpu_links import GpuLinksRule
from weft.cluster.config.popularity import PopularitySettings
from weft.cluster.config.section import DAY_S, Port
from weft.files.form import Section
from weft.files.queue_settings import QueueingSettings, QueuesSettings
from weft.model.annotations import SLO_MS
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS
from weft.model.request import PREFERENCES_PERCENT

API_VERSION = "weft.dev/v1"
KIND = "WeftConfiguration"
MOST_WEIGHT = 1_000_000
"""Upper limit of weights: scores of 0 to 100 times this weight, summed over all policies, fit into
64 bits."""

# Error messages use `refused` and `above` instead of the bound; {} is the value.
Promise = Annotated[
    float,
    Meta(
        ge=1, le=10, extra={"refused": "{:g} is not a limit; write 1 (as much as there is) to 10"}
    ),
]
Scale = Annotated[
    float,
    Meta(
        ge=0, le=sys.float_info.max, extra={"refused": "{} is not a scale; write 0.01 for percent"}
    ),
]
LookSeconds = Annotated[
    float,
    Meta(gt=0, le=DAY_S, extra={"above": "{:g} is more than a day; write seconds, 86400 at most"}),
]


class PolicySettings(Section, frozen=True):
    """One policy of a profile. The first policy orders the queue, breaks ties and chooses
    devices."""

    name: Annotated[
        str,
        "least-stranding is the default of `weft`: of the policies that look at requests alone it "
        "strands the fewest GPUs, and with pods that come and go waits are no longer than under "
        "fgd",
    ]
    weight: Annotated[
        int,
        Meta(ge=0, le=MOST_WEIGHT),
        "weight among several policies that score; each policy's scores are first scaled to 0 to "
        "100",
    ] = 1
    options: Annotated[dict[str, Any], "options of this policy, all optional"] = msgspec.field(
        default_factory=dict
    )


class ProfileSettings(Section, frozen=True):
    """Policies that decide for the pods of one schedulerName."""

    scheduler_name: Annotated[str, "the spec.schedulerName of pods that this profile decides for"]
    policies: Annotated[
        tuple[PolicySettings, ...],
        "see `weft policies`; the first one orders the queue, breaks ties and picks GPUs",
    ]
    via: Annotated[
        Literal["scheduler", "extender"],
        "extender leaves these pods to a kube-scheduler that asks Weft's extender; scheduler, "
        "since "
        "it needs no further configuration. Both at once would bind each pod twice",
    ] = "scheduler"
    preferences: Annotated[
        int,
        Meta(ge=0, le=100),
        "percent of the range of the policies' scores within which pods' preferences (preferred "
        "affinity, PreferNoSchedule, ScheduleAnyway, images on nodes) choose the node; 0 ignores "
        "them, 100 lets them decide first. 2, since a preference then costs the GPUs next to "
        "nothing",
    ] = PREFERENCES_PERCENT
    preempt: Annotated[
        bool,
        "ends pods of lower priority that Weft schedules for a pod that fits nowhere, as "
        "kube-scheduler does; true, since priorities are there for that. Pods with "
        "preemptionPolicy Never preempt no pod",
    ] = True
    disruption_budgets: Annotated[
        Literal["preferred", "law"],
        "preferred may preempt against a PodDisruptionBudget if there is no other way, as "
        "kube-scheduler does; law never does, and asks the Eviction API",
    ] = "preferred"


class ClientSettings(Section, frozen=True):
    """Limits of requests to the API server."""

    qps: Annotated[
        float,
        Meta(gt=0, le=1_000_000),
        "requests per second to the API server; high, since the server has its own fair queueing, "
        "while kube-scheduler's default of 50 would bind at most 50 pods per second",
    ] = 5_000
    burst: Annotated[
        int, Meta(ge=1, le=1_000_000), "requests at once before qps applies; two seconds' worth"
    ] = 10_000
    binds_in_flight: Annotated[
        int, Meta(ge=1, le=10_000), "bindings at once; 32 already reach the API server's rate"
    ] = 64
    request_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=3_600),
        "timeout of a binding, whose outcome is then looked up; twice this time must fit into "
        "the lease",
    ] = 3


class LeaseSettings(Section, frozen=True):
    """Leader election among several processes."""

    enabled: Annotated[
        bool,
        "whether a Lease selects the process that binds; on, since every rolling update runs two "
        "processes at once",
    ] = True
    namespace: Annotated[str, "namespace of the Lease; kube-system, like kube-scheduler's"] = (
        "kube-system"
    )
    name: Annotated[str, "name of the Lease; of the processes with the same name one leads"] = (
        "weft"
    )
    duration_seconds: Annotated[
        int,
        Meta(ge=1, le=10),
        "how long to wait for a dead leader; at most 10, since a new leader waits that long if the "
        "Lease is missing, and no leader may still be active then",
    ] = 10
    renew_seconds: Annotated[
        float, Meta(gt=0, le=10), "time between renewals; three may fail in a row"
    ] = 2


class LimitsSettings(Section, frozen=True):
    """Limits for reserving GPU memory, as a multiple of what a GPU has, and for how long a pod's
    full request counts."""

    overcommit: Annotated[
        Promise,
        "how much of a GPU's memory may be promised to pods, whatever is measured; above 1, pods "
        "that use what they requested may run out of memory",
    ] = 1.0
    harvest: Annotated[
        Promise,
        "how much a harvesting policy may promise if the difference is measured idle; 1 lends "
        "nothing. With 1.5, for example, borrowers may be evicted; up to 2 "
        "a pod lends what similar pods left idle to their end, above 2 also what it leaves idle "
        "now. A late memory peak may then run pods out of memory, as may, at any limit, "
        "an application whose runs use more memory than earlier ones",
    ] = 1.0
    warm_up_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "time after binding in which a pod's full request counts, however little it uses: most "
        "pods "
        "have loaded what they will use by then; increase it for pods that take longer",
    ] = 60
    stable_seconds: Annotated[
        float,
        Meta(gt=0, le=DAY_S),
        "after that the full request counts until memory has changed by less than 2 % for this "
        "time; at most "
        "telemetry.windowSeconds, or nothing would ever be lent",
    ] = 20


class VolumeSettings(Section, frozen=True):
    """Volume claims that are bound only once their pod has a node (WaitForFirstConsumer)."""

    timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=DAY_S),
        "how long a pod keeps its place until its claims are bound; 600, as for kube-scheduler: "
        "slow storage takes minutes, and after that the share is free for others",
    ] = 600


class OomHistorySettings(Section, frozen=True):
    """Settings of the ConfigMap, in the Lease's namespace, of workloads that ran out of GPU
    memory."""

    name: Annotated[
        str,
        "name of a ConfigMap in lease.namespace that stores what workloads that ran out of GPU "
        "memory are "
        "charged, and peak use of similar pods, for a restarted Weft; "
        "empty: only in memory",
    ] = "weft-lessons"


class InventoryRule(Section, frozen=True):
    """GPUs of nodes that no other source describes; the first matching rule counts."""

    count: Annotated[int, Meta(ge=1, le=MOST_GPUS), "number of GPUs of each of these nodes"]
    memory_mib: Annotated[
        int,
        Meta(ge=1, le=MOST_GPU_MIB),
        "memory of one GPU in MiB, as nvidia-smi shows it",
    ] = msgspec.field(name="memoryMiB")
    model: Annotated[str, "GPU model as pods name it; empty matches only pods that name none"] = ""
    nodes: Annotated[str, "a shell pattern on the node's name; all nodes"] = "*"
    labels: Annotated[dict[str, str], "labels that the node must have; none"] = msgspec.field(
        default_factory=dict
    )


class HttpSettings(Section, frozen=True):
    """HTTP server of the scheduler: health, metrics, explanations."""

    address: Annotated[
        str, "all addresses, so that the kubelet's probes and Prometheus reach it"
    ] = "0.0.0.0"
    port: Annotated[
        Port,
        "health, readiness, metrics and explain; kube-scheduler's own number, 0 for a free one",
    ] = 10_259
    anyone_may_explain: Annotated[
        bool,
        "lets anyone who reaches http.port read explanations for pods of all namespaces; off: "
        "only from loopback, or users whom the API server allows to read /explain",
    ] = False


class EventSettings(Section, frozen=True):
    """Kubernetes events and conditions that Weft writes."""

    interval_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "least time between two events or two conditions for one pod and reason; people read "
        "events in minutes",
    ] = 60
    scheduled: Annotated[
        bool, "whether to write an event for every bound pod, as kube-scheduler does"
    ] = True


class UsageSettings(Section, frozen=True):
    """Groups of pods for which metrics report the GPUs held, for `weft usage --prometheus`."""

    labels: Annotated[
        tuple[str, ...],
        "pods' labels, such as team, by whose values metrics tell who holds GPUs; none, since only "
        "you know which labels have few values",
    ] = ()
    most_groups: Annotated[
        int,
        Meta(ge=0, le=100_000),
        "how many workloads, and values of each label, have series of their own: those that hold "
        "most; all others are summed. Four series each, which Prometheus carries easily",
    ] = 1_000


Compat = Literal["sane", "exact"]


class CompatSettings(Section, frozen=True):
    """Compatibility with the original systems: exact reproduces their decisions, flaws included."""

    elastic: Annotated[
        Compat,
        "exact: elastic-binpack scores nodes by the original's formula, and gives kube-scheduler "
        "these unbounded scores; sane, since that formula adds MiB to percent",
    ] = "sane"
    alnair: Annotated[
        Compat,
        "exact: all nodes tie, as in the original when a container requests no vgpu-memory; "
        "sane, since the original was meant to compare them",
    ] = "sane"
    genius: Annotated[
        Compat, "exact: the original's score, which prefers hot GPUs; sane prefers cool ones"
    ] = "sane"
    coscheml: Annotated[
        Compat, "exact: every node counts as if it had one GPU; sane, since most have more"
    ] = "sane"


BY_SCHEDULER_NAME, BY_AUTO = "schedulerName", "auto"
"""Values of routes that name no policy: the policies of the pod's own profile, or gpushare or
Co-scheML."""

DEFAULT_ROUTES = {
    "/weft": BY_SCHEDULER_NAME,
    "/scheduler": "elastic-binpack",
    "/gpushare-scheduler": BY_AUTO,
}


class ExtenderSettings(Section, frozen=True):
    """Settings of the extender service for kube-scheduler."""

    enabled: Annotated[
        bool, "whether to serve the extender; off, since no port is opened unless asked for"
    ] = False
    address: Annotated[
        str,
        "loopback, for a kube-scheduler on the same machine; any other address needs "
        "clientAuthorityFile, since clients may bind every pod",
    ] = "127.0.0.1"
    port: Annotated[
        Port,
        "Elastic GPU's port, so that its kube-scheduler configuration fits; 0 for a free one",
    ] = 39_999
    original_ports: Annotated[
        bool,
        "also listen on 39999 and 12345, as Elastic GPU and gpushare did; off, since one port is "
        "enough "
        "if kube-scheduler is reconfigured",
    ] = False
    routes: Annotated[
        dict[str, str],
        "policy by path. schedulerName lets the pod's own profile decide; auto is coscheml once "
        "there is a table of interference, and gpushare otherwise; else a schedulerName of "
        "profiles, or a policy (the original's -priority spread is spread, random is random). A "
        "path that is not listed is not served",
    ] = msgspec.field(default_factory=DEFAULT_ROUTES.copy)
    interference_table: Annotated[
        str,
        "Co-scheML's table of slowdowns, for routes with auto; read if it exists, by default "
        "where Co-scheML had it",
    ] = "/data/interference.json"
    certificate_file: Annotated[
        str, "PEM certificate; with its key the extender uses HTTPS. None, as in the originals"
    ] = ""
    key_file: Annotated[str, "PEM, of the certificate"] = ""
    client_authority_file: Annotated[
        str,
        "PEM; only clients with a certificate signed by it are served. None: only loopback clients",
    ] = ""
    anyone_may_bind: Annotated[
        bool,
        "lets anyone who reaches the extender bind pods of all namespaces, as the originals did; "
        "off, since every pod of the cluster can reach it",
    ] = False


class OwnMetric(Section, frozen=True):
    """Meaning of an exporter's metric that Weft does not know; see docs/reference/telemetry.md.

    `scale` converts the metric's unit to Weft's: 0.01 for percentages."""

    name: Annotated[str, "name of the exporter's metric"]
    metric: Annotated[str, "Weft's own name, such as sm_active_ratio"]
    scale: Annotated[
        Scale,
        "factor to Weft's unit; 0.01 for percent, 0 if it may be percent or ratio",
    ] = 1.0


DEFAULT_EXPORTERS = (
    "app.kubernetes.io/name=weft-agent",
    "app.kubernetes.io/name=dcgm-exporter",
    "app=nvidia-dcgm-exporter",
)


class TelemetrySettings(Section, frozen=True):
    """Sources of GPU metrics, how often they are read, and how far back."""

    url: Annotated[
        str,
        "URL of a metrics server with Prometheus' API, up to /api/v1; none: policies see no "
        "GPU metrics, and decide by requests",
    ] = ""
    exporters: Annotated[
        str,
        "instead of a metrics server, the URL of each node's exporter, such as "
        "http://{address}:9400/metrics; for small clusters, as history is lost at a restart",
    ] = ""
    discover: Annotated[
        Literal["", "exporters"],
        "exporters: find the nodes' exporters among the cluster's pods. Empty, since you decide "
        "which pods Weft trusts",
    ] = ""
    namespaces: Annotated[
        tuple[str, ...],
        "namespaces for discover; all, but then exporters get no credentials, and nobody is "
        "evicted for "
        "reported progress, since anyone who may create a pod could ask for or report them",
    ] = ()
    exporter_selectors: Annotated[
        tuple[str, ...],
        "labels of exporters' pods; Weft's agent, dcgm-exporter, the GPU operator's exporter",
    ] = DEFAULT_EXPORTERS
    interval_seconds: Annotated[
        LookSeconds,
        "time between two polls; policies need no more, and forecasts use these steps",
    ] = 15
    scrape_seconds: Annotated[
        LookSeconds,
        "scrape interval of the server; a sample older than two intervals is stale, older than "
        "six (at least a minute) missing",
    ] = 15
    window_seconds: Annotated[
        LookSeconds,
        "how far back peaks and forecasts look; twenty polls, the fewest that Kube-Knots' rules "
        "allow",
    ] = 300
    horizon_seconds: Annotated[LookSeconds, "how far ahead forecasts look"] = 60
    timeout_seconds: Annotated[LookSeconds, "timeout of one poll; the next poll waits for it"] = 10
    username: Annotated[str, "user name for HTTP basic authentication; none"] = ""
    password_file: Annotated[str, "file with its password, read again every minute"] = ""
    bearer_token_file: Annotated[str, "file with a bearer token, read again every minute; none"] = (
        ""
    )
    authority_file: Annotated[
        str, "PEM; CA of the server's certificate. None: the system's CAs"
    ] = ""
    certificate_file: Annotated[str, "PEM; client certificate for the server. None"] = ""
    key_file: Annotated[str, "PEM, of the certificate"] = ""
    verify: Annotated[bool, "whether the server's certificate is verified"] = True
    headers: Annotated[
        dict[str, str], "HTTP headers of every query, such as X-Scope-OrgID for Mimir; none"
    ] = msgspec.field(default_factory=dict)
    partial_response: Annotated[
        bool,
        "whether Thanos may leave out stores that do not answer; off, since no answer is safer "
        "than "
        "half an answer",
    ] = False
    selector: Annotated[
        str,
        'label matchers for each query, if a server has several clusters: cluster="a"; none',
    ] = ""
    names: Annotated[
        tuple[OwnMetric, ...], "meanings of other exporters' metrics; the usual ones are known"
    ] = ()


class InterferenceSettings(Section, frozen=True):
    """Predictions of how much applications slow each other down (at most one file), and how
    observed slowdown is measured and stored."""

    table: Annotated[
        str,
        "a table of slowdowns in Co-scheML's form; none: the extender's table, if there is one",
    ] = ""
    model: Annotated[
        str, "instead of a table, a model written by weft interference train; none"
    ] = ""
    profiles: Annotated[
        str,
        "solo profiles of applications, a file of `weft profile`, for how fast they should "
        "run; none: those in interference.model, and what pods declare",
    ] = ""
    mystic: Annotated[
        str,
        "file of Mystic's distances between applications, for coscheml with pairing mystic; none",
    ] = ""
    reload_seconds: Annotated[
        int,
        Meta(ge=0, le=DAY_S),
        "time between two checks of whether these files, or the extender's table, changed; a "
        "kubelet "
        "takes as long to update a mounted ConfigMap. 0: they are only read at the start",
    ] = 60
    progress_metric: Annotated[
        str,
        "the counter of work done that applications export; if it shows that a pod exceeds its "
        "bound, a best-effort pod on its GPU is evicted. Empty: no pod is evicted for it, and the "
        "metric is not queried",
    ] = "weft_progress_total"
    latency_metric: Annotated[
        str,
        f"a gauge of applications' p99 latency, in seconds, for pods with {SLO_MS}; none, since "
        f"there "
        "is no usual name",
    ] = ""
    observed: Annotated[
        str,
        "name of a ConfigMap in lease.namespace that stores observed slowdowns, and which "
        "applications are "
        "kept apart; empty: only in memory",
    ] = "weft-observed"

    @property
    def predicted(self) -> bool:
        """True if predictions come from a file other than the extender's table."""
        return bool(self.table or self.model)


DEFAULT_PROFILES = (
    ProfileSettings("weft", (PolicySettings("least-stranding"),)),
    ProfileSettings("alnair-cost-saving", (PolicySettings("alnair-cost-saving"),)),
    ProfileSettings("alnair-high-performance", (PolicySettings("alnair-high-performance"),)),
    ProfileSettings("genius-scheduler", (PolicySettings("genius"),)),
    ProfileSettings("custom-scheduler", (PolicySettings("ferikoglou-safe", 1, {"round_s": 0}),)),
)


class Configuration(Section, frozen=True):
    """The whole configuration file."""

    api_version: Annotated[str, "version of this file's form; other versions are refused"] = (
        API_VERSION
    )
    kind: Annotated[str, "marks this file as a Weft configuration"] = KIND
    profiles: Annotated[
        tuple[ProfileSettings, ...],
        "policies by schedulerName; pods of other schedulers are not "
        "scheduled, but what they hold counts",
    ] = DEFAULT_PROFILES
    gpushare_unit: Annotated[
        Literal["auto", "GiB", "MiB"],
        "the unit of aliyun.com/gpu-mem; auto takes each node's own",
    ] = "auto"
    volcano_memory_factor: Annotated[
        int,
        Meta(ge=1, le=1_048_576),
        "MiB that one volcano.sh/vgpu-memory is: gpuMemoryFactor of Volcano's device plugin",
    ] = 1
    past_scheduler: Annotated[
        Literal["charge", "evict"],
        "pods with a schedulerName of profiles and GPU requests that were bound past Weft, such "
        "as by "
        "nodeName: charge counts the most that they may hold; evict also evicts them, including "
        "those "
        "that another scheduler of that name placed without annotations",
    ] = "charge"
    compat: CompatSettings = CompatSettings()
    inventory: Annotated[
        tuple[InventoryRule, ...],
        "GPUs of nodes that no annotation, label or device plugin describes; none, since most "
        "clusters have one of these",
    ] = ()
    gpu_links: Annotated[
        tuple[GpuLinksRule, ...],
        "how GPUs are connected on nodes without an annotation for it; none, since Weft's agent "
        "and "
        "HAMi's device plugin report it",
    ] = ()
    client: ClientSettings = ClientSettings()
    lease: LeaseSettings = LeaseSettings()
    limits: LimitsSettings = LimitsSettings()
    queue: QueueingSettings = QueueingSettings()
    queues: QueuesSettings = QueuesSettings()
    volumes: VolumeSettings = VolumeSettings()
    oom_history: OomHistorySettings = OomHistorySettings()
    http: HttpSettings = HttpSettings()
    extender: ExtenderSettings = ExtenderSettings()
    events: EventSettings = EventSettings()
    usage: UsageSettings = UsageSettings()
    agent: AgentSettings = AgentSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    interference: InterferenceSettings = InterferenceSettings()
    popularity: PopularitySettings = PopularitySettings()
    seed: Annotated[
        int,
        Meta(ge=0, le=2**63 - 1),
        "seed of policies that draw random numbers; the same seed gives the same decisions",
    ] = 0
