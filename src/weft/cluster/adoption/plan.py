"""Plans the adoption of a cluster, and lists problems that prevent it. Writes nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from weft.cluster.admission.scheduling import DEFAULT_SCHEDULER
from weft.cluster.adoption.account import ClusterAccount, PodAccount, account_of
from weft.cluster.adoption.originals import (
    DAEMON_SETS,
    DEPLOYMENTS,
    HelmRelease,
    KubeWorkload,
    Original,
    originals_of,
    plugins_of,
    release_of,
    scheduler_configurations,
)
from weft.cluster.reading.claims import ClaimObjects, read_claims
from weft.cluster.reading.finding import some
from weft.cluster.reading.objects import read_objects
from weft.cluster.reading.reading import HowToRead
from weft.cluster.rights import HOW_TO_GET
from weft.cluster.state.koordinator_devices import devices_by_node
from weft.cluster.state.pod_reader import not_placed, read_bound
from weft.dialects.dialect import DialectSettings
from weft.dialects.kai import is_reservation
from weft.dialects.koordinator import KoordinatorDevice
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.codec import CONFIG_MAPS, NODES, PODS, MetaOnly, Resource
from weft.kube.pods import Pod
from weft.kube.preflight import LEAST_MINOR, lacking_of, minor_of
from weft.kube.structs import ConfigMap, KubeNode
from weft.model import BadInputError, ObjectMeta
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED
from weft.model.nearest import unknown

NAMESPACES = Resource("/api/v1", "namespaces", MetaOnly)
SYSTEM_NAMESPACE = "kube-system"
_MOST_NAMES = 5


class AdoptionProblem(NamedTuple):
    """A problem to fix before anything is written: object, field, fault and remedy."""

    object: str
    field: str
    problem: str
    remedy: str


class AdoptionWish(NamedTuple):
    """A request to adopt namespaces (none: those with GPU pods), with Weft's schedulerNames and the
    settings by which nodes and pods are read."""

    namespaces: Sequence[str] = ()
    names: Collection[str] = ("weft",)
    reading: HowToRead = HowToRead()


class ClusterObjects(NamedTuple):
    """Objects read from the cluster. `minor` is the API server's version 1.`minor`; `unread` lists
    optional kinds that the caller may not read."""

    nodes: Sequence[KubeNode]
    pods: Sequence[Pod]
    namespaces: Sequence[MetaOnly]
    config_maps: Sequence[ConfigMap]
    deployments: Sequence[KubeWorkload]
    daemon_sets: Sequence[KubeWorkload]
    broken: Sequence[tuple[str, ObjectMeta]]
    minor: int
    unread: Sequence[str]
    claims: ClaimObjects = ClaimObjects()
    devices: Mapping[str, KoordinatorDevice] = MappingProxyType({})


class AdoptionPlan(NamedTuple):
    """Plan of an adoption. `opt_in` are the namespaces to label, by name.

    `waiting` are pending GPU pods of another scheduler, which they keep: spec.schedulerName is
    immutable. `release` is the helm release that installed Weft, if any."""

    account: ClusterAccount
    opt_in: tuple[str, ...]
    waiting: tuple[str, ...]
    originals: tuple[Original, ...]
    configurations: tuple[str, ...]
    problems: tuple[AdoptionProblem, ...]
    minor: int
    unread: tuple[str, ...]
    release: HelmRelease | None


async def lacking_rights(
    client: ApiClient, needed: Iterable[ResourceRight]
) -> AdoptionProblem | None:
    """Return a problem that lists the rights that the caller lacks, or None."""
    lacking = ", ".join(map(str, await lacking_of(client, needed)))
    if not lacking:
        return None
    return AdoptionProblem("your rights", "rules", f"no permission to {lacking}", HOW_TO_GET)


WANTED: Mapping[str, tuple[Resource[Any], str]] = {
    "node": (NODES, ""),
    "pod": (PODS, ""),
    "deployments": (DEPLOYMENTS, ""),
    "daemonsets": (DAEMON_SETS, ""),
    "namespaces": (NAMESPACES, ""),
    "configmaps": (CONFIG_MAPS, SYSTEM_NAMESPACE),
}
"""Kinds to read, with their namespace ("" for all); Deployments and DaemonSets are optional."""


async def read_cluster(client: ApiClient) -> ClusterObjects:
    """Read all objects that a plan needs; raises the client's errors."""
    needed = ("node", "pod", "namespaces", "configmaps")
    minor, read = await minor_of(client), await read_objects(client, WANTED, needed)
    devices = await devices_by_node(client)
    kinds = ("node", "pod")
    return ClusterObjects(
        nodes=read.of["node"],
        pods=read.of["pod"],
        namespaces=read.of["namespaces"],
        config_maps=read.of["configmaps"],
        deployments=read.of["deployments"],
        daemon_sets=read.of["daemonsets"],
        broken=[(kind, meta) for kind, meta in read.broken if kind in kinds],
        minor=minor,
        unread=(*read.unread, *(("devices",) if devices is None else ())),
        claims=await read_claims(client),
        devices=devices or {},
    )


def plan_of(objects: ClusterObjects, account: ClusterAccount, wish: AdoptionWish) -> AdoptionPlan:
    """Plan the adoption; `BadInputError` if a named namespace does not exist."""
    asking = [pod for pod in objects.pods if not pod.ended and _asks(pod, wish.reading.settings)]
    labels = {
        namespace.metadata.name: namespace.metadata.labels or {} for namespace in objects.namespaces
    }
    chosen = _chosen(labels, asking, wish)
    opted = {name for name in chosen if labels[name].get(SCHEDULE) == SCHEDULE_ENABLED}
    waiting = sorted(
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in asking
        if not pod.spec.node_name and _scheduler(pod) not in wish.names
    )
    problems = (
        *_version_problems(objects.minor),
        *_broken_objects(objects.broken),
        *_unreadable_pods(account.pods),
        *_kept_out(labels, chosen),
        *_two_schedulers(asking, chosen, wish.names),
        *_two_plugins(objects.nodes),
    )
    return AdoptionPlan(
        account,
        tuple(sorted(chosen - opted)),
        tuple(waiting),
        tuple(originals_of(objects.deployments, objects.daemon_sets)),
        tuple(scheduler_configurations(objects.config_maps)),
        problems,
        objects.minor,
        tuple(objects.unread),
        release_of(objects.deployments),
    )


def guessed_pods(plan: AdoptionPlan) -> dict[str, list[PodAccount]]:
    """Return, by node, ambiguous pods that are charged some of the node's GPUs but may use
    others."""
    cards = {
        node.name: {gpu.index for gpu in node.gpus if gpu.parent is None}
        for node in plan.account.nodes
    }
    guessed: dict[str, list[PodAccount]] = {}
    for pod in plan.account.pods:
        some = {share.gpu for share in pod.shares}
        if pod.state == "ambiguous" and some and some < cards.get(pod.node, set()):
            guessed.setdefault(pod.node, []).append(pod)
    return guessed


def account_for(client: ApiClient, objects: ClusterObjects, wish: AdoptionWish) -> ClusterAccount:
    """Return the charge of every pod and claim in these objects."""
    how = wish.reading._replace(devices=objects.devices)
    return account_of(
        objects.nodes, objects.config_maps, objects.pods, how, client.clock, objects.claims
    )


def _asks(pod: Pod, settings: DialectSettings) -> bool:
    try:
        request = read_bound(pod, settings)
    except BadInputError:
        return True
    return request.dialect != "none" or bool(not_placed(pod, request))


def _chosen(
    labels: dict[str, dict[str, str]], asking: Sequence[Pod], wish: AdoptionWish
) -> set[str]:
    """Return the named namespaces, otherwise those with GPU pods for Weft or the default
    scheduler."""
    for name in wish.namespaces:
        if name not in labels:
            raise BadInputError("--namespace", unknown(name, labels))
    if wish.namespaces:
        return set(wish.namespaces)
    taken = {DEFAULT_SCHEDULER, *wish.names}
    own = (pod for pod in asking if not is_reservation(pod))
    names = {pod.metadata.namespace for pod in own if _scheduler(pod) in taken}
    return {name for name in names if name in labels}


def _scheduler(pod: Pod) -> str:
    return pod.spec.scheduler_name or DEFAULT_SCHEDULER


# --- problems ------------------------------------------------------------------------------------


def _version_problems(minor: int) -> Iterator[AdoptionProblem]:
    if 0 < minor < LEAST_MINOR:
        remedy = f"upgrade the cluster to Kubernetes 1.{LEAST_MINOR} or newer"
        yield AdoptionProblem("API server", "version", f"is 1.{minor}", remedy)


def _broken_objects(broken: Iterable[tuple[str, ObjectMeta]]) -> Iterator[AdoptionProblem]:
    for kind, meta in broken:
        name = f"{meta.namespace}/{meta.name}".strip("/")
        problem = "cannot be decoded as a Kubernetes object: what it holds cannot be counted"
        remedy = f"kubectl get {kind} {meta.name} -o yaml shows it; correct or delete it"
        yield AdoptionProblem(f"{kind} {name}", "(all of it)", problem, remedy)


def _unreadable_pods(pods: Iterable[PodAccount]) -> Iterator[AdoptionProblem]:
    for pod in pods:
        if pod.unreadable is not None:
            field, problem = pod.unreadable
            remedy = "let it end, or create it again; until then it is charged all GPUs of its node"
            yield AdoptionProblem(f"pod {pod.full_name}", field, problem, remedy)


def _kept_out(
    labels: dict[str, dict[str, str]], chosen: Iterable[str]
) -> Iterator[AdoptionProblem]:
    for name in sorted(chosen):
        value = labels[name].get(SCHEDULE, SCHEDULE_ENABLED)
        if value != SCHEDULE_ENABLED:
            field = f"metadata.labels[{SCHEDULE}]"
            remedy = f"kubectl label namespace {name} {SCHEDULE}- , or choose others by --namespace"
            problem = f"is {value!r}: it is opted out"
            yield AdoptionProblem(f"namespace {name}", field, problem, remedy)


def _two_schedulers(
    asking: Iterable[Pod], chosen: Collection[str], served: Collection[str]
) -> Iterator[AdoptionProblem]:
    """Yield a problem for each namespace that another scheduler serves too: both would allocate the
    same GPUs."""
    others: dict[tuple[str, str], list[str]] = {}
    for pod in asking:
        meta, name = pod.metadata, _scheduler(pod)
        if meta.namespace in chosen and name != DEFAULT_SCHEDULER and name not in served:
            others.setdefault((meta.namespace, name), []).append(meta.name)
    for (namespace, name), pods in sorted(others.items()):
        remedy = (
            f"give Weft a profile of that name (schedulerName: {name}) and name the file with "
            "--config, or leave the namespace out with --namespace"
        )
        problem = f"is {name} in {_some(pods)}: two schedulers would serve this namespace"
        yield AdoptionProblem(f"namespace {namespace}", "pods' spec.schedulerName", problem, remedy)


def _two_plugins(nodes: Iterable[KubeNode]) -> Iterator[AdoptionProblem]:
    for node in nodes:
        plugins = plugins_of(node)
        if len(plugins) > 1:
            names = [name for resources in plugins.values() for name in resources]
            problem = f"has {_some(names)}: {len(plugins)} device plugins hand out the same GPUs"
            remedy = (
                f"keep one of {', '.join(plugins)} on this node: remove from the node the labels "
                "that the others' DaemonSets select, or replace all of them by weft agent"
            )
            name = f"node {node.metadata.name}"
            yield AdoptionProblem(name, "status.allocatable", problem, remedy)


def _some(names: Collection[str]) -> str:
    return some(names, _MOST_NAMES)


# --- commands -------------------------------------------------------------------------------------


def switch_commands(plan: AdoptionPlan) -> list[str]:
    """Return the commands, in order, that stop the present scheduler, start Weft and opt namespaces
    in."""
    commands = [
        f"kubectl -n {namespace} get configmap {name} -o yaml | weft config import -"
        for namespace, _, name in (name.partition("/") for name in plan.configurations)
    ]
    commands += [
        f"kubectl -n {original.namespace} scale {original.target} --replicas=0"
        for original in plan.originals
        if original.role == "scheduler" and original.kind == "Deployment"
    ]
    commands += _installing(plan)
    if plan.opt_in:
        commands.append("weft adopt --yes  # " + ", ".join(plan.opt_in))
    return [*commands, "weft status"]


def roll_back_commands(plan: AdoptionPlan) -> list[str]:
    """Return the commands that undo the switch. Pods that Weft placed keep running, with
    annotations that the original scheduler reads."""
    return ["weft adopt --undo", *_removing(plan)] + [
        f"kubectl -n {original.namespace} scale {original.target} --replicas={original.replicas}"
        for original in plan.originals
        if original.role == "scheduler" and original.kind == "Deployment"
    ]


def _installing(plan: AdoptionPlan) -> list[str]:
    """Return the commands that install or upgrade Weft, by helm if helm installed it, otherwise by
    manifests; the admission policies let the present device plugins write annotations."""
    marking = _marking(plan)
    if plan.release is not None:
        space, name = plan.release
        upgrade = f"helm upgrade {name} deploy/chart --namespace {space} --reset-then-reuse-values"
        plugins = f" --set 'admission.plugins={{{','.join(marking)}}}'" if marking else ""
        return [upgrade + plugins]
    policy = ["weft admission --only schedule | kubectl apply -f -"] * (plan.minor >= 36)
    writing = " ".join(f"--plugin {user}" for user in marking)
    protect = [f"weft admission --only protect {writing} | kubectl apply -f -"] * bool(writing)
    return ["kubectl apply -f deploy/scheduler.yaml", *protect, *policy]


def _marking(plan: AdoptionPlan) -> list[str]:
    """Return the users of device plugins that annotate pods and that scheduler.yaml's policies do
    not list."""
    plugins = (one for one in plan.originals if one.role == "device plugin")
    return sorted({one.user for one in plugins if one.system != "nvidia"})


def _removing(plan: AdoptionPlan) -> list[str]:
    if plan.release is not None:
        return [f"helm uninstall {plan.release.name} --namespace {plan.release.namespace}"]
    policy = ["weft admission --only schedule | kubectl delete -f -"] * (plan.minor >= 36)
    return [*policy, "kubectl delete -f deploy/scheduler.yaml"]
