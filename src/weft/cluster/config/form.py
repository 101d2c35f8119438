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
        ge=1, le=10, extra={"refused": "{:g} is not a limit; write 1 (all of a GPU's memory) to 10"}
    ),
]
Scale = Annotated[
    float,
    Meta(
        ge=0,
        le=sys.float_info.max,
        extra={"refused": "{} is not a scale; write a factor, such as 0.01 for percent"},
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
        "name of the policy. Profile `weft` has least-stranding by default: of the policies that "
        "use only requests, it strands the fewest GPUs, and when pods come and go, they wait no "
        "longer than with fgd",
    ]
    weight: Annotated[
        int,
        Meta(ge=0, le=MOST_WEIGHT),
        "weight of this policy's scores if several policies score; each policy's scores are first "
        "scaled to 0 to 100",
    ] = 1
    options: Annotated[dict[str, Any], "options of this policy, all optional"] = msgspec.field(
        default_factory=dict
    )


class ProfileSettings(Section, frozen=True):
    """Policies that decide for the pods of one schedulerName."""

    scheduler_name: Annotated[str, "the spec.schedulerName of pods that this profile decides for"]
    policies: Annotated[
        tuple[PolicySettings, ...],
        "the profile's policies, listed by `weft policies`; the first one orders the queue, breaks "
        "ties and chooses GPUs",
    ]
    via: Annotated[
        Literal["scheduler", "extender"],
        "scheduler: Weft itself schedules these pods; extender: it leaves them to a "
        "kube-scheduler that calls Weft's extender. scheduler by default, since it needs no "
        "further configuration. Both at once would bind each pod twice",
    ] = "scheduler"
    preferences: Annotated[
        int,
        Meta(ge=0, le=100),
        "percent of the range of the policies' scores within which pods' preferences (preferred "
        "affinity, PreferNoSchedule, ScheduleAnyway, images on nodes) choose the node; 0 ignores "
        "them, 100 lets them decide first. 2 by default, since preferences then hardly change how "
        "well GPUs are used",
    ] = PREFERENCES_PERCENT
    preempt: Annotated[
        bool,
        "whether pods of lower priority that Weft schedules are ended for a pod that fits nowhere, "
        "as by kube-scheduler; true by default, since that is what priorities are for. A pod with "
        "preemptionPolicy Never preempts no pod",
    ] = True
    disruption_budgets: Annotated[
        Literal["preferred", "law"],
        "preferred: preemption violates a PodDisruptionBudget only if nothing else makes room, "
        "as by kube-scheduler; law: it never does, and pods are ended through the Eviction API",
    ] = "preferred"


class ClientSettings(Section, frozen=True):
    """Limits of requests to the API server."""

    qps: Annotated[
        float,
        Meta(gt=0, le=1_000_000),
        "requests per second to the API server; high by default, since the server has its own fair "
        "queueing, while kube-scheduler's default of 50 would bind at most 50 pods per second",
    ] = 5_000
    burst: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        "requests that may be sent at once before qps applies; by default as many as in two "
        "seconds",
    ] = 10_000
    binds_in_flight: Annotated[
        int,
        Meta(ge=1, le=10_000),
        "bindings in progress at once; 64 by default, as 32 already use the API server's full rate",
    ] = 64
    request_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=3_600),
        "seconds after which the outcome of an unanswered binding is looked up in the API; twice "
        "this time must fit into lease.durationSeconds",
    ] = 3


class LeaseSettings(Section, frozen=True):
    """Leader election among several processes."""

    enabled: Annotated[
        bool,
        "whether a Lease selects the process that binds; on by default, since every rolling update "
        "runs two processes at once",
    ] = True
    namespace: Annotated[
        str, "namespace of the Lease; kube-system by default, like that of kube-scheduler's Lease"
    ] = "kube-system"
    name: Annotated[
        str, "name of the Lease; of all processes that name the same Lease, one leads"
    ] = "weft"
    duration_seconds: Annotated[
        int,
        Meta(ge=1, le=10),
        "seconds without a renewal after which another process leads; at most 10, since a new "
        "leader waits that long if the Lease is missing, and no leader may still be active then",
    ] = 10
    renew_seconds: Annotated[
        float, Meta(gt=0, le=10), "seconds between renewals; by default, three may fail in a row"
    ] = 2


class LimitsSettings(Section, frozen=True):
    """Limits for reserving GPU memory, as a multiple of what a GPU has, and for how long a pod's
    full request counts."""

    overcommit: Annotated[
        Promise,
        "how much memory of a GPU may be promised to pods, as a multiple of what it has, "
        "whatever is measured; above 1, pods that use what they requested may run out of memory",
    ] = 1.0
    harvest: Annotated[
        Promise,
        "how much a harvesting policy may promise, as a multiple of a GPU's memory, if the "
        "excess is measured idle; 1 lends nothing. Above 1, pods that borrow memory may be "
        "evicted. Up to 2, only memory is lent that similar pods never used; above 2, also what "
        "a pod does not use now: its late memory peak may then run pods out of memory. At any "
        "limit above 1, an application that uses more memory than in earlier runs may do so, too",
    ] = 1.0
    warm_up_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "seconds after binding for which a pod's full request counts, however little it uses; by "
        "default a minute, in which most pods load what they will use. Increase it for pods that "
        "take longer",
    ] = 60
    stable_seconds: Annotated[
        float,
        Meta(gt=0, le=DAY_S),
        "after warmUpSeconds, the full request still counts until the pod's memory use has changed "
        "by less than 2 % for this many seconds; at most telemetry.windowSeconds, or nothing would "
        "ever be lent",
    ] = 20


class VolumeSettings(Section, frozen=True):
    """Volume claims that are bound only once their pod has a node (WaitForFirstConsumer)."""

    timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=DAY_S),
        "seconds for which a pod keeps its node and GPUs while its claims are not bound; then "
        "they are free for other pods. 600 by default, as for kube-scheduler: slow storage takes "
        "minutes",
    ] = 600


class OomHistorySettings(Section, frozen=True):
    """Settings of the ConfigMap, in the Lease's namespace, of workloads that ran out of GPU
    memory."""

    name: Annotated[
        str,
        "name of a ConfigMap in lease.namespace that stores, for a restarted Weft, how much memory "
        "is charged to workloads that ran out of GPU memory, and the peak use of similar pods; "
        "empty: both are only kept in memory",
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
    nodes: Annotated[
        str, "a shell pattern that a node's name must match; by default it matches all nodes"
    ] = "*"
    labels: Annotated[dict[str, str], "labels that a node must have; none by default"] = (
        msgspec.field(default_factory=dict)
    )


class HttpSettings(Section, frozen=True):
    """HTTP server of the scheduler: health, metrics, explanations."""

    address: Annotated[
        str, "listen address; all by default, so that the kubelet's probes and Prometheus reach it"
    ] = "0.0.0.0"
    port: Annotated[
        Port,
        "port of health, readiness, metrics and explanations; kube-scheduler's port by default, 0 "
        "for a free one",
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
        "least seconds between two events, or two updates of a condition, of one pod for the same "
        "reason; a minute by default, since people read them no faster",
    ] = 60
    scheduled: Annotated[
        bool, "whether to write an event for every bound pod, as kube-scheduler does"
    ] = True


class UsageSettings(Section, frozen=True):
    """Groups of pods for which metrics report the GPUs held, for `weft usage --prometheus`."""

    labels: Annotated[
        tuple[str, ...],
        "keys of pods' labels, such as team: metrics show the GPUs held by pods with each value of "
        "such a label. None by default, since only you know which labels have few values",
    ] = ()
    most_groups: Annotated[
        int,
        Meta(ge=0, le=100_000),
        "how many workloads, and how many values of each label, have time series of their own: "
        "those that hold most; the rest are summed. Each has four series; Prometheus easily stores "
        "so many",
    ] = 1_000


Compat = Literal["sane", "exact"]


class CompatSettings(Section, frozen=True):
    """Compatibility with the original systems: exact reproduces their decisions, flaws included."""

    elastic: Annotated[
        Compat,
        "exact: elastic-binpack scores nodes by the original's formula, and gives kube-scheduler "
        "these unbounded scores. sane by default, since that formula adds MiB to percent",
    ] = "sane"
    alnair: Annotated[
        Compat,
        "exact: all nodes tie, as in the original when a container requests no vgpu-memory. sane "
        "by default: nodes are compared, as the original was meant to do",
    ] = "sane"
    genius: Annotated[
        Compat, "exact: the original's score, which prefers hot GPUs; sane: prefers cool GPUs"
    ] = "sane"
    coscheml: Annotated[
        Compat, "exact: every node counts as if it had one GPU; sane: all its GPUs count"
    ] = "sane"


BY_SCHEDULER_NAME, BY_AUTO = "schedulerName", "auto"
"""Values of `routes` that are no policy's name. With the first, the pod's own profile decides; with
the second, coscheml if there is a table of interference, else gpushare."""

DEFAULT_ROUTES = {
    "/weft": BY_SCHEDULER_NAME,
    "/scheduler": "elastic-binpack",
    "/gpushare-scheduler": BY_AUTO,
}


class ExtenderSettings(Section, frozen=True):
    """Settings of the extender service for kube-scheduler."""

    enabled: Annotated[
        bool, "whether to serve the extender; off by default, so that its port is only open if used"
    ] = False
    address: Annotated[
        str,
        "listen address; loopback by default, for a kube-scheduler on the same machine. Any other "
        "address needs clientAuthorityFile or anyoneMayBind, since clients may bind every pod",
    ] = "127.0.0.1"
    port: Annotated[
        Port,
        "port of the extender; by default Elastic GPU's port, so that its kube-scheduler "
        "configuration fits. 0 for a free one",
    ] = 39_999
    original_ports: Annotated[
        bool,
        "whether to listen on 39999 and 12345, too, as Elastic GPU and gpushare did; off by "
        "default, since one port is enough if kube-scheduler is reconfigured",
    ] = False
    routes: Annotated[
        dict[str, str],
        "who decides, by URL path. schedulerName: the profile of the pod's schedulerName; auto: "
        "policy coscheml if there is a table of interference, else gpushare; otherwise the "
        "schedulerName of a profile, or a policy's name (spread and random replace the original's "
        "-priority spread and random). Other paths are not served",
    ] = msgspec.field(default_factory=DEFAULT_ROUTES.copy)
    interference_table: Annotated[
        str,
        "file with Co-scheML's table of slowdowns, for routes with auto; read if it exists. By "
        "default the path at which Co-scheML kept it",
    ] = "/data/interference.json"
    certificate_file: Annotated[
        str,
        "PEM file with the extender's certificate; with it and keyFile the extender uses HTTPS. "
        "None by default, as in the originals",
    ] = ""
    key_file: Annotated[str, "PEM file with the private key of certificateFile"] = ""
    client_authority_file: Annotated[
        str,
        "PEM file with a certificate authority; only clients with a certificate signed by it are "
        "served. None by default: only loopback clients are served",
    ] = ""
    anyone_may_bind: Annotated[
        bool,
        "lets anyone who reaches the extender bind pods of all namespaces, as the originals did; "
        "off by default, since every pod of the cluster could reach it",
    ] = False


class OwnMetric(Section, frozen=True):
    """Meaning of an exporter's metric that Weft does not know; see docs/reference/telemetry.md.

    `scale` converts the metric's unit to Weft's: 0.01 for percentages."""

    name: Annotated[str, "name of the exporter's metric"]
    metric: Annotated[str, "Weft's own name, such as sm_active_ratio"]
    scale: Annotated[
        Scale,
        "factor that converts its values to Weft's unit: 0.01 for percent, 0 if they may be "
        "percent or ratios",
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
        "URL of a metrics server with Prometheus' API, without /api/v1. None by default: policies "
        "get no GPU metrics, and decide by requests",
    ] = ""
    exporters: Annotated[
        str,
        "instead of url: the URL of the exporter on each node, such as "
        "http://{address}:9400/metrics; for small clusters, as history is lost at a restart",
    ] = ""
    discover: Annotated[
        Literal["", "exporters"],
        "exporters: find the nodes' exporters among the cluster's pods. Empty by default, since "
        "you decide which pods Weft trusts",
    ] = ""
    namespaces: Annotated[
        tuple[str, ...],
        "namespaces in which discover finds exporters. Empty: all namespaces, but then exporters "
        "get no credentials, and no pod is evicted for reported progress, since anyone who may "
        "create a pod could receive the credentials or report any progress",
    ] = ()
    exporter_selectors: Annotated[
        tuple[str, ...],
        "label selectors of exporters' pods; by default those of Weft's agent, dcgm-exporter and "
        "the GPU operator's exporter",
    ] = DEFAULT_EXPORTERS
    interval_seconds: Annotated[
        LookSeconds,
        "seconds between two polls, and the step of forecasts; 15 by default, since policies need "
        "no more",
    ] = 15
    scrape_seconds: Annotated[
        LookSeconds,
        "scrape interval of the metrics server in seconds; a sample older than two intervals is "
        "stale, older than six (at least a minute) missing",
    ] = 15
    window_seconds: Annotated[
        LookSeconds,
        "seconds of history from which peaks and forecasts are computed; by default twenty polls, "
        "the fewest that Kube-Knots' rules allow",
    ] = 300
    horizon_seconds: Annotated[LookSeconds, "how many seconds ahead forecasts predict"] = 60
    timeout_seconds: Annotated[
        LookSeconds, "timeout of one poll in seconds; the next poll waits for its end"
    ] = 10
    username: Annotated[str, "user name for HTTP basic authentication; none by default"] = ""
    password_file: Annotated[str, "file with the password of username, read again every minute"] = (
        ""
    )
    bearer_token_file: Annotated[
        str, "file with a bearer token, read again every minute; none by default"
    ] = ""
    authority_file: Annotated[
        str, "PEM file with the CA of the server's certificate; none: the system's CAs count"
    ] = ""
    certificate_file: Annotated[
        str, "PEM file with the client certificate for the server; none by default"
    ] = ""
    key_file: Annotated[str, "PEM file with the private key of certificateFile"] = ""
    verify: Annotated[bool, "whether the server's certificate is verified"] = True
    headers: Annotated[
        dict[str, str],
        "HTTP headers of every query, such as X-Scope-OrgID for Mimir; none by default",
    ] = msgspec.field(default_factory=dict)
    partial_response: Annotated[
        bool,
        "whether Thanos may leave out stores that do not answer; off by default, since no answer "
        "is safer than half an answer",
    ] = False
    selector: Annotated[
        str,
        "label matchers added to each query, for a server with metrics of several clusters: "
        'cluster="a"; none by default',
    ] = ""
    names: Annotated[
        tuple[OwnMetric, ...],
        "meanings of other exporters' metrics; those of common exporters are built in",
    ] = ()


class InterferenceSettings(Section, frozen=True):
    """Predictions of how much applications slow each other down (`table` or `model`, not both),
    and how observed slowdown is measured and stored."""

    table: Annotated[
        str,
        "file with a table of slowdowns in Co-scheML's form; none: the extender's table, if there "
        "is one",
    ] = ""
    model: Annotated[
        str,
        "instead of a table, the file of a model written by weft interference train; none by "
        "default",
    ] = ""
    profiles: Annotated[
        str,
        "file of `weft profile` with solo profiles of applications, which say how fast they run "
        "alone; none: the profiles in interference.model count, and what pods declare",
    ] = ""
    mystic: Annotated[
        str,
        "file with Mystic's distances between applications, for policy coscheml with option "
        "pairing: mystic; none by default",
    ] = ""
    reload_seconds: Annotated[
        int,
        Meta(ge=0, le=DAY_S),
        "seconds between two checks of whether these files, or the extender's table, changed; 60 "
        "by default, since a kubelet takes as long to update a mounted ConfigMap. 0: the files "
        "are only read at the start",
    ] = 60
    progress_metric: Annotated[
        str,
        "name of the counter of work done that applications export; if it shows that a pod is "
        "slower than its slowdown limit allows, a best-effort pod on its GPU is evicted. Empty: "
        "the metric is not queried, and no pod is evicted for slow progress",
    ] = "weft_progress_total"
    latency_metric: Annotated[
        str,
        f"name of a gauge of applications' p99 latency in seconds, for pods with {SLO_MS}; none by "
        "default, since there is no usual name",
    ] = ""
    observed: Annotated[
        str,
        "name of a ConfigMap in lease.namespace that stores observed slowdowns, and which "
        "applications may not share a GPU; empty: both are only kept in memory",
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

    api_version: Annotated[str, "version of this file's format; other versions are refused"] = (
        API_VERSION
    )
    kind: Annotated[str, "marks this file as a Weft configuration"] = KIND
    profiles: Annotated[
        tuple[ProfileSettings, ...],
        "policies by schedulerName; pods of other schedulers are not scheduled, but the GPUs that "
        "they hold count as used",
    ] = DEFAULT_PROFILES
    gpushare_unit: Annotated[
        Literal["auto", "GiB", "MiB"],
        "unit of aliyun.com/gpu-mem; auto: the unit that each node itself shows",
    ] = "auto"
    volcano_memory_factor: Annotated[
        int,
        Meta(ge=1, le=1_048_576),
        "how many MiB one volcano.sh/vgpu-memory is: gpuMemoryFactor of Volcano's device plugin",
    ] = 1
    past_scheduler: Annotated[
        Literal["charge", "evict"],
        "what to do with pods that name a schedulerName of profiles and request GPUs, but that "
        "Weft did not bind, for example because nodeName was set. charge: the most that they may "
        "hold is charged; evict: they are also evicted, even if another scheduler of that name "
        "placed them without annotations",
    ] = "charge"
    compat: CompatSettings = CompatSettings()
    inventory: Annotated[
        tuple[InventoryRule, ...],
        "GPUs of nodes that no annotation, label or device plugin describes; none by default, "
        "since most clusters have one of these",
    ] = ()
    gpu_links: Annotated[
        tuple[GpuLinksRule, ...],
        "how GPUs are connected on nodes without an annotation for it; none by default, since "
        "Weft's agent and HAMi's device plugin report it",
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
