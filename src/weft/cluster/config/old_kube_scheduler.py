"""Converts older kube-scheduler configurations to v1: moved fields, renamed plugins.

Alnair's and Genius' plugins were compiled into their own kube-scheduler. Profiles with them become
Weft profiles; everything else stays with kube-scheduler."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from weft.model import BadInputError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


V1 = "kubescheduler.config.k8s.io/v1"
OUR_POLICY = {
    "alnaircostsaving": "alnair-cost-saving",
    "alnairhighperformance": "alnair-high-performance",
    "vgpuscheduler": "alnair-cost-saving",
    "genius": "genius",
}
"""Weft's policies by the name, in lower case, of the original plugin that they replace."""

_POINTS = _names(
    """
    preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind
    bind postBind multiPoint placementGenerate placementScore
    """
)
_TOP = _names(
    """
    parallelism leaderElection clientConnection enableProfiling enableContentionProfiling
    percentageOfNodesToScore podInitialBackoffSeconds podMaxBackoffSeconds profiles extenders
    delayCacheUntilActive
    """
)
_GONE = {
    "healthzBindAddress": "is gone from v1: kube-scheduler serves it at --secure-port",
    "metricsBindAddress": "is gone from v1: kube-scheduler serves it at --secure-port",
    "algorithmSource": "is gone since v1beta1: profiles and extenders replace it",
    "disablePreemption": "is gone since v1beta1: disable DefaultPreemption in postFilter",
    "hardPodAffinitySymmetricWeight": "is hardPodAffinityWeight of InterPodAffinity's arguments",
    "bindTimeoutSeconds": "is bindTimeoutSeconds of VolumeBinding's arguments",
    "schedulerName": "is a profile's schedulerName since v1alpha2",
}
_GONE_PLUGINS = {
    "NodeResourcesLeastAllocated": "is NodeResourcesFit with scoringStrategy LeastAllocated",
    "NodeResourcesMostAllocated": "is NodeResourcesFit with scoringStrategy MostAllocated",
    "RequestedToCapacityRatio": "is NodeResourcesFit with scoringStrategy RequestedToCapacityRatio",
    "NodePreferAvoidPods": "was removed: taint such nodes",
    "SelectorSpread": "was removed: PodTopologySpread's default constraints replace it",
    "ServiceAffinity": "no longer exists: use pod affinity",
    "NodeLabel": "no longer exists: use node affinity",
    "DefaultPodTopologySpread": "was removed: PodTopologySpread's default constraints replace it",
}
_SCORING = {
    "LeastRequestedPriority": "NodeResourcesFit",
    "BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
    "InterPodAffinityPriority": "InterPodAffinity",
    "NodeAffinityPriority": "NodeAffinity",
    "TaintTolerationPriority": "TaintToleration",
    "ImageLocalityPriority": "ImageLocality",
    "EvenPodsSpreadPriority": "PodTopologySpread",
}
_FILTERS_ON = _names(
    """
    PodFitsHostPorts PodFitsPorts PodFitsResources HostName MatchNodeSelector NoDiskConflict
    NoVolumeZoneConflict PodToleratesNodeTaints CheckNodeUnschedulable CheckVolumeBinding
    MatchInterPodAffinity EvenPodsSpread GeneralPredicates MaxCSIVolumeCountPred
    MaxEBSVolumeCount MaxGCEPDVolumeCount MaxAzureDiskVolumeCount
    """
)
_EXTENDER_FIELDS = _names(
    """
    urlPrefix filterVerb preemptVerb prioritizeVerb weight bindVerb enableHTTPS tlsConfig
    httpTimeout nodeCacheCapable managedResources ignorable
    """
)
_NS_PER_S = 1_000_000_000


class LeftOut(msgspec.Struct, frozen=True):
    """A setting of the old file that has no equivalent today: its place, value, and the reason."""

    where: str
    value: str
    why: str


class KubeSchedulerImport(msgspec.Struct, frozen=True):
    """The v1 configuration (None if all of it became Weft's), and the other results of the import.

    `weft_profiles`: policies by schedulerName. `extenders`: as in the v1 configuration."""

    configuration: dict[str, Any] | None
    weft_profiles: dict[str, str] = {}
    extenders: tuple[dict[str, Any], ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def import_policy(document: Mapping[str, Any], place: str) -> KubeSchedulerImport:
    """Convert a `--policy-config-file` (up to Kubernetes 1.22)."""
    left_out: list[LeftOut] = []
    profile: dict[str, Any] = {"schedulerName": "default-scheduler"}
    scores = _priorities(document, place, left_out)
    if scores is not None:
        profile["plugins"] = {"score": {"disabled": [{"name": "*"}], "enabled": scores}}
    for at, entry in entries(document, "predicates", place):
        name = str(entry.get("name", ""))
        if name not in _FILTERS_ON:
            why = "this filter no longer exists; kube-scheduler's own filters are all enabled"
            left_out.append(LeftOut(at, name, why))
    if (weight := document.get("hardPodAffinitySymmetricWeight")) is not None:
        arguments = {
            "apiVersion": V1,
            "kind": "InterPodAffinityArgs",
            "hardPodAffinityWeight": weight,
        }
        profile["pluginConfig"] = [{"name": "InterPodAffinity", "args": arguments}]
    known = ("kind", "apiVersion", "extenders", "priorities", "predicates")
    for key in document:
        if key not in (*known, "hardPodAffinitySymmetricWeight"):
            why = "is gone with the Policy API"
            left_out.append(LeftOut(f"{place}.{key}", _shown(document[key]), why))
    extenders = _extenders(document, place, left_out)
    configuration: dict[str, Any] = {
        "apiVersion": V1,
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    if extenders:
        configuration["extenders"] = extenders
    return KubeSchedulerImport(configuration, {}, tuple(extenders), tuple(left_out))


def import_kube_scheduler(document: Mapping[str, Any], place: str) -> KubeSchedulerImport:
    """Convert a KubeSchedulerConfiguration of any version."""
    left_out: list[LeftOut] = []
    configuration: dict[str, Any] = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration"}
    for key, value in document.items():
        if key in ("apiVersion", "kind", "profiles", "extenders"):
            continue
        if key in _TOP:
            configuration[key] = (
                _leases(value, place, left_out) if key == "leaderElection" else value
            )
        else:
            why = _GONE.get(key, "is not a field of kube-scheduler's configuration")
            left_out.append(LeftOut(f"{place}.{key}", _shown(value), why))
    ours: dict[str, str] = {}
    profiles = _profiles(document, place, ours, left_out)
    extenders = _extenders(document, place, left_out)
    if profiles:
        configuration["profiles"] = profiles
    if extenders:
        configuration["extenders"] = extenders
    rest = {key for key in configuration if key not in ("apiVersion", "kind")}
    if ours and not profiles and not extenders:
        for key in sorted(rest):
            why = "kube-scheduler has no profile left; Weft's settings are `client` and `lease`"
            left_out.append(LeftOut(f"{place}.{key}", _shown(configuration[key]), why))
        return KubeSchedulerImport(None, ours, (), tuple(left_out))
    return KubeSchedulerImport(configuration, ours, tuple(extenders), tuple(left_out))


def _leases(value: Any, place: str, left_out: list[LeftOut]) -> Any:
    """Replace the leader election's resourceLock by leases, the only lock that kube-scheduler still
    has."""
    if isinstance(value, Mapping) and value.get("resourceLock") not in (None, "leases"):
        where, lock = f"{place}.leaderElection.resourceLock", str(value["resourceLock"])
        left_out.append(LeftOut(where, lock, "leases are the only lock left, and replace it"))
        return {**value, "resourceLock": "leases"}
    return value


def _profiles(
    document: Mapping[str, Any], place: str, ours: dict[str, str], left_out: list[LeftOut]
) -> list[dict[str, Any]]:
    """Return profiles that stay with kube-scheduler; add profiles with the original systems'
    plugins to `ours`."""
    profiles = []
    for where, profile in entries(document, "profiles", place):
        name = str(profile.get("schedulerName") or "default-scheduler")
        plugins = part(profile, "plugins", where)
        policy = _policy_of(plugins, where)
        if policy is None:
            profiles.append(_profile(profile, where, left_out))
        elif name == "default-scheduler":
            profiles.append({"schedulerName": name})
            why = (
                f"pods that name no scheduler stay with kube-scheduler; {policy} decides for those "
                "that request its resources through Weft's extender (weft extender config)"
            )
            left_out.append(LeftOut(f"{where}.plugins", policy, why))
        else:
            ours[name] = policy
            _weights(plugins, where, policy, left_out)
            if profile.get("pluginConfig"):
                why = f"Weft's policy {policy} does not take the plugin's arguments"
                left_out.append(LeftOut(f"{where}.pluginConfig", "", why))
    return profiles


def _policy_of(plugins: Mapping[str, Any], where: str) -> str | None:
    """Return the policy that replaces a plugin enabled in this profile, or None."""
    for point in plugins:
        at = f"{where}.plugins"
        for _, plugin in entries(part(plugins, point, at), "enabled", f"{at}.{point}"):
            if (policy := OUR_POLICY.get(str(plugin.get("name", "")).lower())) is not None:
                return policy
    return None


def _weights(plugins: Mapping[str, Any], where: str, policy: str, left_out: list[LeftOut]) -> None:
    """Record the plugins and weights that a Weft profile cannot express."""
    for point in plugins:
        place = f"{where}.plugins"
        for at, plugin in entries(part(plugins, point, place), "enabled", f"{place}.{point}"):
            name = str(plugin.get("name", ""))
            if name.lower() not in OUR_POLICY:
                why = (
                    "Weft checks what kube-scheduler's filters check, and scores by policies alone"
                )
                left_out.append(LeftOut(at, name, why))
            elif plugin.get("weight") not in (None, 1):
                why = f"{policy} is the only policy that scores there: a weight changes nothing"
                left_out.append(LeftOut(f"{at}.weight", str(plugin["weight"]), why))


def _profile(profile: Mapping[str, Any], where: str, left_out: list[LeftOut]) -> dict[str, Any]:
    """Convert a profile of kube-scheduler's own plugins to v1."""
    made: dict[str, Any] = {}
    for key, value in profile.items():
        if key == "plugins":
            made[key] = _plugins(part(profile, key, where), where, left_out)
        elif key == "pluginConfig":
            made[key] = [_arguments(entry) for _, entry in entries(profile, key, where)]
        else:
            made[key] = value
    return made


def _plugins(
    plugins: Mapping[str, Any], where: str, left_out: list[LeftOut]
) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for point in plugins:
        if point not in _POINTS:
            why = "is not an extension point of kube-scheduler's v1"
            left_out.append(LeftOut(f"{where}.plugins.{point}", "", why))
            continue
        for which in ("enabled", "disabled"):
            entry = part(plugins, point, f"{where}.plugins")
            for at, plugin in entries(entry, which, f"{where}.plugins.{point}"):
                name = str(plugin.get("name", ""))
                if name in _GONE_PLUGINS:
                    left_out.append(LeftOut(at, name, _GONE_PLUGINS[name]))
                else:
                    made.setdefault(point, {}).setdefault(which, []).append(plugin)
    return made


def _arguments(entry: Mapping[str, Any]) -> dict[str, Any]:
    arguments = entry.get("args")
    if isinstance(arguments, Mapping) and "apiVersion" in arguments:
        return {**entry, "args": {**arguments, "apiVersion": V1}}
    return dict(entry)


def _priorities(
    document: Mapping[str, Any], place: str, left_out: list[LeftOut]
) -> list[dict[str, Any]] | None:
    """Return scoring plugins with the old priorities' weights; None if no priorities are given, so
    that all plugins score."""
    if document.get("priorities") is None:
        return None
    scores: list[dict[str, Any]] = []
    for at, entry in entries(document, "priorities", place):
        name = str(entry.get("name", ""))
        if name in _SCORING:
            scores.append({"name": _SCORING[name], "weight": entry.get("weight", 1)})
        else:
            why = _GONE_PLUGINS.get(name, "this score no longer exists")
            left_out.append(LeftOut(at, name, why))
    return scores


def _extenders(
    document: Mapping[str, Any], place: str, left_out: list[LeftOut]
) -> list[dict[str, Any]]:
    extenders = []
    for where, extender in entries(document, "extenders", place):
        fields = {}
        for key, value in extender.items():
            name = "enableHTTPS" if key == "enableHttps" else key
            if name == "httpTimeout" and isinstance(value, int):  # a Policy has nanoseconds
                fields[name] = f"{value / _NS_PER_S:g}s"
            elif name in _EXTENDER_FIELDS:
                fields[name] = value
            else:
                why = "is not a field of an extender"
                left_out.append(LeftOut(f"{where}.{key}", _shown(value), why))
        extenders.append(fields)
    return extenders


def entries(
    document: Mapping[str, Any], key: str, place: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each object of the list under this key, with its place; `BadInputError` if the value is
    not a list, or an entry not an object."""
    value = document.get(key)
    if value is not None and not isinstance(value, list):
        raise BadInputError(f"{place}.{key}", f"{_shown(value)} is not a list")
    for number, entry in enumerate(value or ()):
        at = f"{place}.{key}[{number}]"
        if not isinstance(entry, Mapping):
            raise BadInputError(at, f"{_shown(entry)} is not an object")
        yield at, entry


def part(document: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    """Return the object under this key, {} if missing; `BadInputError` if the value is not an
    object."""
    value = document.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise BadInputError(f"{place}.{key}", f"{_shown(value)} is not an object")
    return value or {}


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
