"""Says whether a pod may run on a node, read off the API's objects one by one: slow and obvious.

Written from Kubernetes' documentation. It knows selectors, affinity to nodes and pods, spread,
taints, cordons, host ports, CPU, memory and the number of pods, and nothing of Weft's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]
Labels = Mapping[str, str]
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 0.001, "": 1}


class Cluster(NamedTuple):
    """The objects of an API server: nodes and pods by name, namespaces' labels."""

    nodes: dict[str, Object]
    pods: dict[str, Object]
    namespaces: dict[str, Labels]

    def bound(self) -> list[Object]:
        """The pods that have a node."""
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName")]


def why_not(cluster: Cluster, pod: Object, node: Object) -> str:
    """The first reason why the pod may not run there; "" where it may."""
    return next(reasons(cluster, pod, node), "")


def reasons(cluster: Cluster, pod: Object, node: Object, *, room: bool = True) -> Iterator[str]:
    """Every reason why the pod may not run there. Without `room` neither its room nor its ports
    are looked at."""
    spec = pod["spec"]
    here = [one for one in cluster.bound() if one["spec"]["nodeName"] == name_of(node)]
    if _is_closed(spec, node):
        yield "taint"
    if not _selected(spec, node):
        yield "node affinity"
    if room and not _has_room(spec, node, here):
        yield "room"
    if room and _ports_clash(spec, here):
        yield "port"
    if not _near(cluster, pod, node):
        yield "affinity"
    if _unwanted(cluster, pod, node):
        yield "anti-affinity"
    if _kept_off(cluster, pod, node):
        yield "others' anti-affinity"
    if not _even(cluster, pod, node):
        yield "spread"


def name_of(item: Object) -> str:
    """Its name."""
    found: str = item["metadata"]["name"]
    return found


def _labels(item: Object) -> Labels:
    return item["metadata"].get("labels") or {}


# --- selectors -----------------------------------------------------------------------------------


def _holds(rule: Object, labels: Labels) -> bool:
    key: str = rule["key"]
    values: Sequence[str] = rule.get("values") or ()
    match rule["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
    return key in labels and int(labels[key]) < int(values[0])


def selects(selector: Object | None, labels: Labels) -> bool:
    """True if a label selector selects what has these labels; none selects nothing."""
    if selector is None:
        return False
    pairs = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in pairs) and all(
        _holds(rule, labels) for rule in selector.get("matchExpressions") or ()
    )


# --- nodes ---------------------------------------------------------------------------------------


def _tolerates(spec: Object, taint: Object) -> bool:
    for each in spec.get("tolerations") or ():
        if each.get("effect") not in (None, taint["effect"]):
            continue
        if each.get("key") not in (None, taint["key"]):
            continue
        if each["operator"] == "Exists" or each.get("value", "") == taint.get("value", ""):
            return True
    return False


def _is_closed(spec: Object, node: Object) -> bool:
    taints = [*(node["spec"].get("taints") or ())]
    if node["spec"].get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    hard = (taint for taint in taints if taint["effect"] != "PreferNoSchedule")
    return any(not _tolerates(spec, taint) for taint in hard)


def _selected(spec: Object, node: Object) -> bool:
    wanted = (spec.get("nodeSelector") or {}).items()
    if any(_labels(node).get(key) != value for key, value in wanted):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(
        _term_holds(term, node) for term in required["nodeSelectorTerms"]
    )


def _term_holds(term: Object, node: Object) -> bool:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return bool(labels or fields) and (
        all(_holds(rule, _labels(node)) for rule in labels)
        and all(_holds(rule, {"metadata.name": name_of(node)}) for rule in fields)
    )


def amount(text: str) -> float:
    number = text.rstrip("KiMGm")
    return float(number) * _UNITS[text[len(number) :]]


def _asked(spec: Object, what: str) -> float:
    every = (one["resources"]["requests"] for one in spec["containers"])
    return sum(amount(requests.get(what, "0")) for requests in every)


def _has_room(spec: Object, node: Object, here: list[Object]) -> bool:
    has = node["status"]["allocatable"]
    if len(here) + 1 > int(has["pods"]):
        return False
    for what in ("cpu", "memory"):
        own, others = _asked(spec, what), sum(_asked(one["spec"], what) for one in here)
        if own and own + others > amount(has[what]) + 1e-9:
            return False
    return True


def _ports(spec: Object) -> Iterator[tuple[int, str, str]]:
    for container in spec["containers"]:
        for port in container.get("ports") or ():
            if "hostPort" in port:
                ip = port.get("hostIP") or "0.0.0.0"
                yield port["hostPort"], port.get("protocol", "TCP"), ip


def _ports_clash(spec: Object, here: list[Object]) -> bool:
    taken = [port for one in here for port in _ports(one["spec"])]
    return any(
        own[:2] == other[:2] and (own[2] == other[2] or "0.0.0.0" in (own[2], other[2]))
        for own in _ports(spec)
        for other in taken
    )


# --- other pods ----------------------------------------------------------------------------------


def _terms(pod: Object, field: str) -> list[Object]:
    affinity = (pod["spec"].get("affinity") or {}).get(field) or {}
    found: list[Object] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return found


def _with_keys(selector: Object | None, owner: Object, rule: Object) -> Object | None:
    """matchLabelKeys and mismatchLabelKeys, as more expressions."""
    if selector is None:
        return None
    own, more = _labels(owner), []
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in rule.get(field) or ():
            if key in own:
                more.append({"key": key, "operator": operator, "values": [own[key]]})
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *more]}


def _wants(cluster: Cluster, owner: Object, term: Object, other: Object) -> bool:
    """True if the owner's term selects the other pod."""
    inside, chosen = other["metadata"]["namespace"], term.get("namespaceSelector")
    named = term.get("namespaces") or ()
    if not named and chosen is None:
        named = (owner["metadata"]["namespace"],)
    if inside not in named and not selects(chosen, cluster.namespaces.get(inside, {})):
        return False
    return selects(_with_keys(term.get("labelSelector"), owner, term), _labels(other))


def _together(cluster: Cluster, pod: Object, node: Object, key: str) -> bool:
    """True if the bound pod is in the node's domain of this key."""
    there = cluster.nodes.get(pod["spec"]["nodeName"])
    return (
        there is not None
        and key in _labels(node)
        and (_labels(there).get(key) == _labels(node)[key])
    )


def _near(cluster: Cluster, pod: Object, node: Object) -> bool:
    terms = _terms(pod, "podAffinity")
    wanted = [
        one for one in cluster.bound() if all(_wants(cluster, pod, term, one) for term in terms)
    ]
    if terms and all(_wants(cluster, pod, term, pod) for term in terms):
        domains = [
            one
            for one in wanted
            for term in terms
            if one["spec"]["nodeName"] in cluster.nodes
            and term["topologyKey"] in _labels(cluster.nodes[one["spec"]["nodeName"]])
        ]
        if not domains:  # it is the first
            return all(term["topologyKey"] in _labels(node) for term in terms)
    return all(
        any(_together(cluster, one, node, term["topologyKey"]) for one in wanted) for term in terms
    )


def _unwanted(cluster: Cluster, pod: Object, node: Object) -> bool:
    return any(
        _wants(cluster, pod, term, one) and _together(cluster, one, node, term["topologyKey"])
        for term in _terms(pod, "podAntiAffinity")
        for one in cluster.bound()
    )


def _kept_off(cluster: Cluster, pod: Object, node: Object) -> bool:
    return any(
        _wants(cluster, one, term, pod) and _together(cluster, one, node, term["topologyKey"])
        for one in cluster.bound()
        for term in _terms(one, "podAntiAffinity")
    )


def _even(cluster: Cluster, pod: Object, node: Object) -> bool:
    said = pod["spec"].get("topologySpreadConstraints") or ()
    hard = [rule for rule in said if rule["whenUnsatisfiable"] == "DoNotSchedule"]
    keys = [rule["topologyKey"] for rule in hard]
    return all(_skew_holds(cluster, pod, node, rule, keys) for rule in hard)


def _skew_holds(
    cluster: Cluster, pod: Object, node: Object, rule: Object, keys: Iterable[str]
) -> bool:
    key, spec = rule["topologyKey"], pod["spec"]
    if key not in _labels(node):
        return False
    selector = _with_keys(rule.get("labelSelector"), pod, rule)
    is_empty = not selector or not (selector.get("matchLabels") or selector["matchExpressions"])
    counts: dict[str, int] = {}
    for other in cluster.nodes.values():
        if not all(each in _labels(other) for each in keys):
            continue
        if rule.get("nodeAffinityPolicy") != "Ignore" and not _selected(spec, other):
            continue
        taints = {"spec": {"taints": other["spec"].get("taints")}}
        if rule.get("nodeTaintsPolicy") == "Honor" and _is_closed(spec, taints):
            continue
        counts.setdefault(_labels(other)[key], 0)
        for one in cluster.bound():
            counts[_labels(other)[key]] += (
                one["spec"]["nodeName"] == name_of(other)
                and not one["metadata"].get("deletionTimestamp")
                and one["metadata"]["namespace"] == pod["metadata"]["namespace"]
                and not is_empty
                and selects(selector, _labels(one))
            )
    least = min(counts.values(), default=0)
    if len(counts) < rule.get("minDomains", 1):
        least = 0
    own, most = selects(selector, _labels(pod)), int(rule["maxSkew"])
    return counts.get(_labels(node)[key], 0) + own - least <= most
