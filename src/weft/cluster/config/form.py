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
from weft.model.annotations import SLO_MS
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS

API_VERSION = "weft.dev/v1"
KIND = "WeftConfiguration"
MOST_WEIGHT = 1_000_000
"""Upper limit of weights: scores of 0 to 100 times this, summed over all policies, fit into 64
bits."""

# Error messages use `refused` and `above` instead of the bound; {} is the value.
Promise = Annotated[
    float,
    Meta(ge=1, le=10, extra={"refused": "{:g} is no limit; write 1 (as much as there is) to 10"}),
]
Scale = Annotated[
    float,
    Meta(ge=0, le=sys.float_info.max, extra={"refused": "{} is no scale; write 0.01 for percent"}),
]
LookSeconds = Annotated[
    float,
    Meta(gt=0, le=DAY_S, extra={"above": "{:g} is more than a day; write seconds, 86400 at most"}),
]


class PolicySettings(Section, frozen=True):
    """One policy of a profile. The first one orders the queue, breaks ties and picks devices."""

    name: Annotated[
        str,
        "least-stranding is the default of `weft`: of the policies that look at requests alone it "
        "strands the fewest GPUs, and where pods come and go none waits longer than under fgd",
    ]
    weight: Annotated[
        int,
        Meta(ge=0, le=MOST_WEIGHT),
        "counts where several policies score; each is then normalised to 0 to 100 first",
    ] = 1
    options: Annotated[dict[str, Any], "what this policy can be told; none has to be"] = (
        msgspec.field(default_factory=dict)
    )


class ProfileSettings(Section, frozen=True):
    """Policies that decide for the pods of one schedulerName."""

    scheduler_name: Annotated[str, "what a pod writes into spec.schedulerName to be decided here"]
    policies: Annotated[
        tuple[PolicySettings, ...],
        "see `weft policies`; the first one queues, breaks ties and picks GPUs",
    ]
    via: Annotated[
        Literal["scheduler", "extender"],
        "extender leaves these pods to a kube-scheduler that asks Weft's extender; scheduler, for "
        "then nothing else need be configured. Both at once would bind each pod twice",
    ] = "scheduler"


class ClientSettings(Section, frozen=True):
    """Limits of requests to the API server."""

    qps: Annotated[
        float,
        Meta(gt=0, le=1_000_000),
        "requests a second to the API server; high, for the server has its own fair queueing, "
        "while kube-scheduler's 50 would bind 50 pods a second",
    ] = 5_000
    burst: Annotated[
        int, Meta(ge=1, le=1_000_000), "requests at once before qps counts; two seconds' worth"
    ] = 10_000
    binds_in_flight: Annotated[
        int, Meta(ge=1, le=10_000), "bindings at once; the API server's rate is reached with 32"
    ] = 64
    request_timeout_seconds: Annotated[
        int,
        Meta(ge=1, le=3_600),
        "a binding that took longer has no answer and is looked up; twice this long must fit into "
        "the lease",
    ] = 3


class LeaseSettings(Section, frozen=True):
    """Leader election among several processes."""

    enabled: Annotated[
        bool,
        "whether a Lease decides who binds; on, for two processes run at once in every rolling "
        "update",
    ] = True
    namespace: Annotated[str, "where the Lease is kept; kube-system, beside kube-scheduler's"] = (
        "kube-system"
    )
    name: Annotated[str, "processes with the same name take turns"] = "weft"
    duration_seconds: Annotated[
        int,
        Meta(ge=1, le=10),
        "how long a dead leader is waited for; at most 10, for so long is waited where the Lease "
        "is missing, and no leader may outlive that",
    ] = 10
    renew_seconds: Annotated[
        float, Meta(gt=0, le=10), "time between renewals; three may fail in a row"
    ] = 2


class LimitsSettings(Section, frozen=True):
    """How much of a GPU's memory may be promised, as a multiple of what it has, and how long a
    pod's full request counts."""

    overcommit: Annotated[
        Promise,
        "how much of a card's memory may be promised to pods, whatever is measured; 1, for pods "
        "that then use what they asked for run out of memory",
    ] = 1.0
    harvest: Annotated[
        Promise,
        "how much a harvesting policy may promise, where the difference is measured idle; 1 lends "
        "nothing: whoever wants it declares how far, as 1.5, and borrowers may be evicted; up to 2 "
        "a pod lends what pods like it left idle to their end, beyond also what it leaves idle "
        "now: a memory peak that comes late may then run pods out of memory, as may, at any limit, "
        "an application whose runs use more than those before",
    ] = 1.0
    warm_up_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "so long after its binding a pod needs all that it asked, however little it uses: most "
        "have by then loaded what they will use; more where they take longer",
    ] = 60
    stable_seconds: Annotated[
        float,
        Meta(gt=0, le=DAY_S),
        "and until its memory changed by less than 2 % for so long once; no longer than "
        "telemetry.windowSeconds, or nothing would ever be lent",
    ] = 20


class OomHistorySettings(Section, frozen=True):
    """The ConfigMap, in the Lease's namespace, of workloads that ran out of GPU memory."""

    name: Annotated[
        str,
        "of a ConfigMap in lease.namespace: what workloads that ran out of GPU memory are "
        "charged, and the most that pods like each other used, so that a restarted Weft knows; "
        "empty keeps it in memory alone",
    ] = "weft-lessons"


class InventoryRule(Section, frozen=True):
    """GPUs of nodes that nothing else describes; the first matching rule counts."""

    count: Annotated[int, Meta(ge=1, le=MOST_GPUS), "how many cards each of these nodes has"]
    memory_mib: Annotated[
        int,
        Meta(ge=1, le=MOST_GPU_MIB),
        "the true memory of one card in MiB, as nvidia-smi shows it",
    ] = msgspec.field(name="memoryMiB")
    model: Annotated[str, "as pods name it; empty matches only pods that name none"] = ""
    nodes: Annotated[str, "a shell pattern on the node's name; all nodes"] = "*"
    labels: Annotated[dict[str, str], "labels that the node must have; none"] = msgspec.field(
        default_factory=dict
    )


class HttpSettings(Section, frozen=True):
    """The scheduler's own HTTP server: health, metrics, explain."""

    address: Annotated[
        str, "all addresses, so that the kubelet's probes and Prometheus reach it"
    ] = "0.0.0.0"
    port: Annotated[
        Port,
        "health, readiness, metrics and explain; kube-scheduler's own number, 0 for a free one",
    ] = 10_259
    anyone_may_explain: Annotated[
        bool,
        "lets whoever reaches http.port read why pods of all namespaces are where they are; off: "
        "loopback, or whom the API server lets read /explain",
    ] = False


class EventSettings(Section, frozen=True):
    """Kubernetes events and conditions that Weft writes."""

    interval_seconds: Annotated[
        float,
        Meta(ge=0, le=DAY_S),
        "least time between two events or two conditions of one pod and reason; people read "
        "events in minutes",
    ] = 60
    scheduled: Annotated[bool, "an event for every pod that is bound, as kube-scheduler writes"] = (
        True
    )


Compat = Literal["sane", "exact"]


class CompatSettings(Section, frozen=True):
    """Compatibility with the original systems: exact reproduces their decisions, flaws included."""

    elastic: Annotated[
        Compat,
        "exact: elastic-binpack scores nodes by the original's formula, and tells kube-scheduler "
        "these scores, which have no bound; sane, for that formula adds MiB to percent",
    ] = "sane"
    alnair: Annotated[
        Compat,
        "exact: all nodes tie, as in the original wherever a container asks for no vgpu-memory; "
        "sane, for the original meant to compare them",
    ] = "sane"
    genius: Annotated[
        Compat, "exact: the original's score, which prefers hot cards; sane prefers cool ones"
    ] = "sane"
    coscheml: Annotated[
        Compat, "exact: every node counts as if it had one GPU; sane, for most have more"
    ] = "sane"


BY_SCHEDULER_NAME, BY_AUTO = "schedulerName", "auto"
"""Routes that name no policy: the pod's own profile, and gpushare or Co-scheML."""

DEFAULT_ROUTES = {
    "/weft": BY_SCHEDULER_NAME,
    "/scheduler": "elastic-binpack",
    "/gpushare-scheduler": BY_AUTO,
}


class ExtenderSettings(Section, frozen=True):
    """The extender service for kube-scheduler."""

    enabled: Annotated[bool, "whether kube-scheduler may ask; off, for nothing listens unasked"] = (
        False
    )
    address: Annotated[
        str,
        "loopback, for kube-scheduler on the same machine; any other address needs "
        "clientAuthorityFile: who is answered may bind every pod",
    ] = "127.0.0.1"
    port: Annotated[
        Port,
        "Elastic GPU's, so that its kube-scheduler configuration needs no other; 0 for a free one",
    ] = 39_999
    original_ports: Annotated[
        bool,
        "also on 39999 and 12345, as Elastic GPU and gpushare had it; off, for one port is enough "
        "where kube-scheduler is told anew",
    ] = False
    routes: Annotated[
        dict[str, str],
        "path: policy. schedulerName lets the pod's own profile decide, auto is coscheml once "
        "there is a table of interference and gpushare otherwise; else a schedulerName of "
        "profiles, or a policy (the original's -priority spread is spread, random is random). A "
        "path that is left out is not served",
    ] = msgspec.field(default_factory=DEFAULT_ROUTES.copy)
    interference_table: Annotated[
        str,
        "Co-scheML's table of slowdowns, for routes that are auto; read only where it is, and "
        "where Co-scheML had it",
    ] = "/data/interference.json"
    certificate_file: Annotated[
        str, "PEM; with its key the extender speaks HTTPS. None, as the originals"
    ] = ""
    key_file: Annotated[str, "PEM, of the certificate"] = ""
    client_authority_file: Annotated[
        str,
        "PEM; only clients with a certificate that it signed are answered. None: only loopback is",
    ] = ""
    anyone_may_bind: Annotated[
        bool,
        "lets whoever reaches the extender bind pods of all namespaces, as the originals did; "
        "off, for every pod of the cluster reaches it",
    ] = False


class OwnMetric(Section, frozen=True):
    """The meaning of an exporter's metric that Weft does not know; see docs/reference/telemetry.md.

    `scale` converts the metric's unit to Weft's: 0.01 for percentages."""

    name: Annotated[str, "of the exporter's metric"]
    metric: Annotated[str, "Weft's own name, such as sm_active_ratio"]
    scale: Annotated[
        Scale,
        "times this is Weft's unit; 0.01 for percent, 0 where it may be percent or ratio",
    ] = 1.0


DEFAULT_EXPORTERS = (
    "app.kubernetes.io/name=weft-agent",
    "app.kubernetes.io/name=dcgm-exporter",
    "app=nvidia-dcgm-exporter",
)


class TelemetrySettings(Section, frozen=True):
    """The sources of GPU metrics, and how often and how far back they are read."""

    url: Annotated[
        str,
        "a metrics server with Prometheus' API, as it stands before /api/v1; none: no policy sees "
        "what GPUs do, and each decides by requests",
    ] = ""
    exporters: Annotated[
        str,
        "instead of a metrics server, the page of each node's exporter, such as "
        "http://{address}:9400/metrics; for small clusters, for nobody keeps what was before",
    ] = ""
    discover: Annotated[
        Literal["", "exporters"],
        "exporters: look for the nodes' exporters among the cluster's pods. Empty, for whom Weft "
        "listens to is yours to say",
    ] = ""
    namespaces: Annotated[
        tuple[str, ...],
        "where discover looks; all, but then nobody is given credentials, or evicted for the "
        "progress that is told, for anyone who may make a pod could ask for them, or tell it",
    ] = ()
    exporter_selectors: Annotated[
        tuple[str, ...],
        "labels of exporters' pods; Weft's agent, dcgm-exporter's own, the GPU operator's",
    ] = DEFAULT_EXPORTERS
    interval_seconds: Annotated[
        LookSeconds,
        "time between two looks; policies need no more, and forecasts are made in these steps",
    ] = 15
    scrape_seconds: Annotated[
        LookSeconds,
        "how often the server asks the exporters; a sample older than two of these is stale, than "
        "six (at least a minute) nothing",
    ] = 15
    window_seconds: Annotated[
        LookSeconds,
        "how far back peaks and forecasts look; twenty looks, the fewest that Kube-Knots' rules "
        "admit",
    ] = 300
    horizon_seconds: Annotated[LookSeconds, "how far ahead forecasts look"] = 60
    timeout_seconds: Annotated[
        LookSeconds, "an answer that takes longer is none; the next look waits for it"
    ] = 10
    username: Annotated[str, "of HTTP's basic authentication; none"] = ""
    password_file: Annotated[str, "its password, read again every minute"] = ""
    bearer_token_file: Annotated[str, "a token, read again every minute; none"] = ""
    authority_file: Annotated[
        str, "PEM; who signed the server's certificate. None: the system's"
    ] = ""
    certificate_file: Annotated[str, "PEM; shown to a server that asks who we are. None"] = ""
    key_file: Annotated[str, "PEM, of the certificate"] = ""
    verify: Annotated[bool, "whether the certificate is looked at"] = True
    headers: Annotated[
        dict[str, str], "sent with every question, as X-Scope-OrgID to Mimir; none"
    ] = msgspec.field(default_factory=dict)
    partial_response: Annotated[
        bool,
        "Thanos may leave out stores that do not answer; off, for a missing answer is safer than "
        "half of one",
    ] = False
    selector: Annotated[
        str,
        'goes into each query, where a server knows several clusters, such as cluster="a"; none',
    ] = ""
    names: Annotated[
        tuple[OwnMetric, ...], "what other exporters' metrics mean; the usual ones are known"
    ] = ()


class InterferenceSettings(Section, frozen=True):
    """Predictions of how much applications slow each other down (at most one file), and how the
    actual slowdown of pods is observed and stored."""

    table: Annotated[
        str,
        "a table of slowdowns, as Co-scheML has it; none: where the extender has its table, that "
        "one",
    ] = ""
    model: Annotated[str, "instead of a table, predictions as Weft writes them; none"] = ""
    profiles: Annotated[
        str,
        "what applications do alone, as `weft profile` keeps it in a file: how fast they should "
        "go; none: what interference.model has, and what pods say of themselves",
    ] = ""
    mystic: Annotated[
        str, "mystic's distances between applications, for coscheml with pairing mystic; none"
    ] = ""
    reload_seconds: Annotated[
        int,
        Meta(ge=0, le=DAY_S),
        "time between two looks whether these files, or the extender's table, changed; a kubelet "
        "takes as long to bring a ConfigMap's change. 0: they are read at the start alone",
    ] = 60
    progress_metric: Annotated[
        str,
        "the counter of work done that applications export; a pod whose bound is broken by it has "
        "a best-effort pod beside it evicted. Empty: nobody is, and nothing is asked",
    ] = "weft_progress_total"
    latency_metric: Annotated[
        str,
        f"a gauge of applications' p99, in seconds, for pods with {SLO_MS}; none, for there "
        "is no usual name",
    ] = ""
    observed: Annotated[
        str,
        "of a ConfigMap in lease.namespace: how slow pods were seen beside each other, and who is "
        "kept apart; empty keeps it in memory alone",
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
    """The whole file."""

    api_version: Annotated[
        str, "the form of this file; another version is refused, never guessed at"
    ] = API_VERSION
    kind: Annotated[str, "says that this is a configuration of Weft and no manifest"] = KIND
    profiles: Annotated[
        tuple[ProfileSettings, ...],
        "which policies decide for the pods of which schedulerName; pods of other names are not "
        "scheduled, but what they hold is counted",
    ] = DEFAULT_PROFILES
    gpushare_unit: Annotated[
        Literal["auto", "GiB", "MiB"],
        "what one aliyun.com/gpu-mem is; auto asks each node, which knows its own",
    ] = "auto"
    volcano_memory_factor: Annotated[
        int,
        Meta(ge=1, le=1_048_576),
        "MiB that one volcano.sh/vgpu-memory is: gpuMemoryFactor of Volcano's device plugin",
    ] = 1
    past_scheduler: Annotated[
        Literal["charge", "evict"],
        "pods that name a scheduler of profiles, ask for GPUs and were bound without it, as by "
        "nodeName: charge counts the most that they may hold; evict has them evicted too, those "
        "that another scheduler of that name placed without marks among them",
    ] = "charge"
    compat: CompatSettings = CompatSettings()
    inventory: Annotated[
        tuple[InventoryRule, ...],
        "GPUs of nodes that no annotation, label or device plugin describes; none, for most "
        "clusters have one of these",
    ] = ()
    gpu_links: Annotated[
        tuple[GpuLinksRule, ...],
        "how the GPUs of nodes are connected where no annotation says; none, for Weft's agent and "
        "HAMi's device plugin tell",
    ] = ()
    client: ClientSettings = ClientSettings()
    lease: LeaseSettings = LeaseSettings()
    limits: LimitsSettings = LimitsSettings()
    oom_history: OomHistorySettings = OomHistorySettings()
    http: HttpSettings = HttpSettings()
    extender: ExtenderSettings = ExtenderSettings()
    events: EventSettings = EventSettings()
    agent: AgentSettings = AgentSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    interference: InterferenceSettings = InterferenceSettings()
    popularity: PopularitySettings = PopularitySettings()
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1), "for policies that draw; the same seed decides the same"
    ] = 0
