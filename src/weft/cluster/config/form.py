"""The form of the configuration file. Why each default is as it is stands in `reasons`."""

from typing import Any, Literal

import msgspec

API_VERSION = "weft.dev/v1"
KIND = "WeftConfiguration"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base: snake_case here, camelCase in the file; a field nobody knows is an error."""


class PolicySettings(Section, frozen=True):
    """One policy of a profile; the first one queues, breaks ties and picks devices."""

    name: str
    weight: int = 1
    options: dict[str, Any] = {}


class ProfileSettings(Section, frozen=True):
    """Which policies decide for the pods of a schedulerName."""

    scheduler_name: str
    policies: tuple[PolicySettings, ...]


class ClientSettings(Section, frozen=True):
    """How the API server is asked."""

    qps: float = 5_000
    burst: int = 10_000
    binds_in_flight: int = 64
    request_timeout_seconds: int = 3


class LeaseSettings(Section, frozen=True):
    """Leadership among several processes."""

    enabled: bool = True
    namespace: str = "kube-system"
    name: str = "weft"
    duration_seconds: int = 10
    renew_seconds: float = 2


class LimitsSettings(Section, frozen=True):
    """How much of a card's memory may be promised, in cards: 1 is what it has; and how long a pod
    is held at what it asked."""

    overcommit: float = 1.0
    harvest: float = 1.0
    warm_up_seconds: float = 60
    stable_seconds: float = 20


class OomHistorySettings(Section, frozen=True):
    """Where it is kept which workloads ran out of GPU memory: a ConfigMap beside the Lease."""

    name: str = "weft-lessons"


class InventoryRule(Section, frozen=True):
    """GPUs of nodes that nobody else tells of; the first rule that fits a node is the node's."""

    count: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    model: str = ""
    nodes: str = "*"
    labels: dict[str, str] = {}


class HttpSettings(Section, frozen=True):
    """Where the scheduler answers questions about itself."""

    address: str = "0.0.0.0"
    port: int = 10_259
    anyone_may_explain: bool = False


class EventSettings(Section, frozen=True):
    """What people are told through the API."""

    interval_seconds: float = 60
    scheduled: bool = True


Compat = Literal["sane", "exact"]


class CompatSettings(Section, frozen=True):
    """Whether the policies of these systems decide as their originals did, flaws included."""

    elastic: Compat = "sane"
    alnair: Compat = "sane"
    genius: Compat = "sane"
    coscheml: Compat = "sane"


BY_SCHEDULER_NAME, BY_AUTO = "schedulerName", "auto"
"""Routes that name no policy: the pod's own profile, and gpushare or Co-scheML."""

DEFAULT_ROUTES = {
    "/weft": BY_SCHEDULER_NAME,
    "/scheduler": "elastic-binpack",
    "/gpushare-scheduler": BY_AUTO,
}


class ExtenderSettings(Section, frozen=True):
    """Whether, where and how kube-scheduler is answered."""

    enabled: bool = False
    address: str = "127.0.0.1"
    port: int = 39_999
    original_ports: bool = False
    routes: dict[str, str] = msgspec.field(default_factory=DEFAULT_ROUTES.copy)
    interference_table: str = "/data/interference.json"
    certificate_file: str = ""
    key_file: str = ""
    client_authority_file: str = ""
    anyone_may_bind: bool = False


class OwnMetric(Section, frozen=True):
    """What a metric of an exporter that Weft does not know means; see docs/reference/telemetry.md.

    `scale` makes the metric's unit Weft's own: 0.01 for percentages.
    """

    name: str
    metric: str
    scale: float = 1.0


DEFAULT_EXPORTERS = ("app.kubernetes.io/name=dcgm-exporter", "app=nvidia-dcgm-exporter")


class TelemetrySettings(Section, frozen=True):
    """Where and how Weft looks at what the GPUs do."""

    url: str = ""
    exporters: str = ""
    discover: Literal["", "servers", "exporters"] = ""
    namespaces: tuple[str, ...] = ()
    exporter_selectors: tuple[str, ...] = DEFAULT_EXPORTERS
    interval_seconds: float = 15
    scrape_seconds: float = 15
    window_seconds: float = 300
    horizon_seconds: float = 60
    timeout_seconds: float = 10
    username: str = ""
    password_file: str = ""
    bearer_token_file: str = ""
    authority_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    headers: dict[str, str] = {}
    partial_response: bool = False
    selector: str = ""
    names: tuple[OwnMetric, ...] = ()


class InterferenceSettings(Section, frozen=True):
    """What policies are told of how much applications slow each other down: one file, or none; and
    how it is found out how fast pods really go, and where that is kept."""

    table: str = ""
    model: str = ""
    profiles: str = ""
    mystic: str = ""
    reload_seconds: int = 60
    progress_metric: str = "weft_progress_total"
    latency_metric: str = ""
    observed: str = "weft-observed"

    @property
    def predicted(self) -> bool:
        """Whether anything but the extender's own table is named."""
        return bool(self.table or self.model)


DEFAULT_PROFILES = (
    ProfileSettings("weft", (PolicySettings("fgd"),)),
    ProfileSettings("alnair-cost-saving", (PolicySettings("alnair-cost-saving"),)),
    ProfileSettings("alnair-high-performance", (PolicySettings("alnair-high-performance"),)),
    ProfileSettings("genius-scheduler", (PolicySettings("genius"),)),
    ProfileSettings("custom-scheduler", (PolicySettings("ferikoglou-safe", 1, {"round_s": 0}),)),
)


class Configuration(Section, frozen=True):
    """The whole file."""

    api_version: str = API_VERSION
    kind: str = KIND
    profiles: tuple[ProfileSettings, ...] = DEFAULT_PROFILES
    gpushare_unit: Literal["auto", "GiB", "MiB"] = "auto"
    compat: CompatSettings = CompatSettings()
    inventory: tuple[InventoryRule, ...] = ()
    client: ClientSettings = ClientSettings()
    lease: LeaseSettings = LeaseSettings()
    limits: LimitsSettings = LimitsSettings()
    oom_history: OomHistorySettings = msgspec.field(default=OomHistorySettings(), name="lessons")
    http: HttpSettings = HttpSettings()
    extender: ExtenderSettings = ExtenderSettings()
    events: EventSettings = EventSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    interference: InterferenceSettings = InterferenceSettings()
    seed: int = 0
