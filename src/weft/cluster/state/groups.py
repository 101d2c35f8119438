"""Determines each pod's group, as a `Gang`, from the pod and its PodGroup object.

A pod that names a group waits until its PodGroup exists, whichever of the two is created first.
When a PodGroup is added, changed or deleted, all pods of its group are reported again; so are the
pods of a group in which pods state different sizes (the largest counts), have different priorities
or name other schedulers, and pods whose namespace gains or loses `weft.dev/gang: owner`. Each kind
of PodGroup is followed only where the API server has it; a group of a kind that is not followed
counts as one whose object is missing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple, Protocol, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.dialects.group_objects import GroupPolicy, KubePodGroup, policy_of
from weft.dialects.groups import (
    BY_OWNER,
    KUBERNETES,
    SCHEDULER_PLUGINS,
    VOLCANO,
    GroupWords,
    could_have_by_namespace,
    group_of,
    may_have_group,
)
from weft.kube.codec import MetaOnly, Resource
from weft.kube.pods import Pod
from weft.kube.watch import Change, Deleted
from weft.model import Gang, PodRequest
from weft.model.annotations import GANG
from weft.model.ceilings import MOST_GANG_PODS

KUBE_GROUPS = Resource("/apis/scheduling.k8s.io/v1beta1", "podgroups", KubePodGroup)
OLD_KUBE_GROUPS = Resource("/apis/scheduling.k8s.io/v1alpha2", "podgroups", KubePodGroup)
PLUGIN_GROUPS = Resource("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups", KubePodGroup)
VOLCANO_GROUPS = Resource("/apis/scheduling.volcano.sh/v1beta1", "podgroups", KubePodGroup)
GROUP_KINDS: Mapping[str, tuple[Resource[KubePodGroup], ...]] = {
    KUBERNETES: (KUBE_GROUPS, OLD_KUBE_GROUPS),
    SCHEDULER_PLUGINS: (PLUGIN_GROUPS,),
    VOLCANO: (VOLCANO_GROUPS,),
}
"""The PodGroup kinds of each system, the newest version first. The first version that is served
shows all objects."""


def api_group(kind: Resource[KubePodGroup]) -> str:
    """Return the API group of this kind of PodGroups."""
    return kind.path.split("/")[2]


K = TypeVar("K")
_NAMED = 2
"""The most pods or priorities that a note names."""
ObjectKey = tuple[str, str, str]  # system, namespace, name


class KnownGroup(NamedTuple):
    """A pod's group, unset for a pod on its own, and warnings about it for people. `unhonoured`
    says why the group keeps the pod waiting, "" if it does not."""

    gang: Gang | UnsetType = UNSET
    warnings: tuple[str, ...] = ()
    unhonoured: str = ""


NO_GROUP = KnownGroup()


class Groups(Protocol):
    """A source of pods' groups."""

    def read(self, pod: Pod) -> KnownGroup:
        """Return the pod's group as it is now."""
        ...


def with_policy(words: GroupWords, policy: GroupPolicy) -> KnownGroup:
    """Return the group as its PodGroup describes it; no group if the PodGroup does not require its
    pods to start together."""
    gang, warnings = words.gang, (*words.warnings, *policy.warnings)
    if gang is UNSET or not policy.is_gang:
        return KnownGroup(UNSET, warnings, policy.unhonoured)
    known = replace(
        gang,
        least=policy.least,
        created_ns=policy.created_ns,
        topology_key=policy.topology_key,
        least_by_task=policy.least_by_task,
        ends_as_one=policy.ends_as_one,
    )
    return KnownGroup(known, warnings, policy.unhonoured)


def _within(known: KnownGroup, most: int) -> KnownGroup:
    """Return the group; if it needs more than `most` pods together, with `unhonoured` set, so that
    it waits."""
    if not known.gang:
        return known
    needs = max(known.gang.least, sum(least for _, least in known.gang.least_by_task))
    if needs <= most:
        return known
    text = f"group {known.gang} needs {needs:,} pods together, and queue.gangPods allows {most:,}"
    return known._replace(unhonoured="; ".join(filter(None, (known.unhonoured, text))))


def words_of(pod: Pod, *, by_namespace: bool = False, written: bool = False) -> GroupWords:
    """Read what the pod itself states about its group; see `group_of`."""
    controllers = (each for each in pod.metadata.owner_references or () if each.controller)
    owner = next((f"{each.kind}/{each.name}" for each in controllers), "")
    return group_of(pod, owner=owner, by_namespace=by_namespace, written=written)


def in_group_of(request: PodRequest, asked: PodRequest) -> PodRequest:
    """Return `asked` with the group as it was at the decision on `request`, if the pod is still in
    that group: changes of the PodGroup since then only affect later decisions."""
    now, then = asked.gang, request.gang
    if now is UNSET or then is UNSET or now.key != then.key:
        return asked
    return replace(asked, gang=then, warnings=request.warnings)


class MemberWords(NamedTuple):
    """One pod's part in its group: the size that it states (0 for none), its priority (in manifests
    the PriorityClass if it names one), and its schedulerName if it is another scheduler's."""

    name: str
    size: int
    priority: int | str = 0
    scheduler: str = ""


class _Members:
    """The existing pods of a group by UID, the number of pods that state each size or have each
    priority, the pods of other schedulers, and the objects that may state the group's size."""

    def __init__(self) -> None:
        self.stated: dict[str, MemberWords] = {}
        self.sizes: dict[int, int] = {}
        self.priorities: dict[int | str, int] = {}
        self.elsewhere: dict[str, MemberWords] = {}
        self.objects: set[ObjectKey] = set()

    def put(self, uid: str, words: MemberWords) -> bool:
        """Add the pod, or update it; return True if the group's other pods have to be read
        again."""
        if self.stated.get(uid) == words:
            return False
        before = self._said()
        if uid in self.stated:
            self._take(uid)
        self.stated[uid] = words
        self.sizes[words.size] = self.sizes.get(words.size, 0) + 1
        self.priorities[words.priority] = self.priorities.get(words.priority, 0) + 1
        if words.scheduler:
            self.elsewhere[uid] = words
        return before != self._said()

    def drop(self, uid: str) -> bool:
        """Remove the pod; return True if the group's other pods have to be read again."""
        before = self._said()
        self._take(uid)
        return before != self._said()

    def mixed(self, group: str) -> Iterator[str]:
        """Yield notes on pods that name other schedulers, and on different priorities."""
        if self.elsewhere:
            some = list(islice(self.elsewhere.values(), _NAMED + 1))
            they, are = ("it does", "it is") if len(some) == 1 else ("they do", "they are")
            why = f"which is not Weft's: {they} not count for the group until {are} bound"
            yield elsewhere_in_words(group, some, why)
        if len(self.priorities) > 1:
            yield priorities_in_words(group, list(islice(self.priorities, _NAMED + 1)))

    def _take(self, uid: str) -> None:
        words = self.stated.pop(uid)
        self.elsewhere.pop(uid, None)
        _one_less(self.sizes, words.size)
        _one_less(self.priorities, words.priority)

    def _said(self) -> tuple[object, ...]:
        """Return the facts about the group on which the reading of each of its pods depends. These
        facts rarely change, so that pods are rarely read again."""
        shown = self.elsewhere.values(), self.priorities
        return frozenset(self.sizes) - {0}, *(tuple(islice(each, _NAMED + 1)) for each in shown)


def _one_less(counts: dict[K, int], value: K) -> None:
    counts[value] -= 1
    if not counts[value]:
        del counts[value]


def elsewhere_in_words(group: str, some: Sequence[MemberWords], why: str) -> str:
    """Return a note on pods of a group that name a different scheduler; `why` says why that
    matters."""
    namespace = group.partition("/")[0]
    names = ", ".join(f"{namespace}/{each.name}" for each in some[:_NAMED])
    names += ", …" if len(some) > _NAMED else ""
    pods, have = ("pod", "has") if len(some) == 1 else ("pods", "have")
    return (
        f"{pods} {names} of group {group} {have} schedulerName {some[0].scheduler}, {why}; "
        "write one schedulerName on all"
    )


def priorities_in_words(group: str, some: Sequence[int | str]) -> str:
    """Return a note on pods of a group that have different priorities."""
    shown = list(map(str, sorted(some[:_NAMED], key=lambda each: (isinstance(each, str), each))))
    text = ", ".join((*shown, "…")) if len(some) > _NAMED else " and ".join(shown)
    return (
        f"pods of group {group} have priorities {text}: the highest counts for all; set one "
        "priority on all"
    )


class _WrittenMembers:
    """The pods of a group in manifests: some pods of each schedulerName, and the priorities that
    occur."""

    def __init__(self) -> None:
        self.some: dict[str, list[MemberWords]] = {}
        self.priorities: dict[int | str, None] = {}

    def mixed(self, group: str, own: str) -> Iterator[str]:
        """Yield notes for a pod of the group whose schedulerName is `own`."""
        others = chain.from_iterable(some for name, some in self.some.items() if name != own)
        if some := list(islice(others, _NAMED + 1)):
            why = f"and this pod {own}: they start together only if both are Weft's"
            yield elsewhere_in_words(group, some, why)
        if len(self.priorities) > 1:
            yield priorities_in_words(group, list(islice(self.priorities, _NAMED + 1)))


class WrittenGroups:
    """The groups of pods in manifests, without a cluster: `policies` are the PodGroups in the same
    files, and `use` adds pods."""

    def __init__(self, policies: Mapping[ObjectKey, GroupPolicy] | None = None) -> None:
        self._policies = policies or {}
        self._members: dict[str, _WrittenMembers] = {}

    def use(self, pod: Pod) -> None:
        """Add a pod of the manifests."""
        gang, spec = words_of(pod, written=True).gang, pod.spec
        if gang is UNSET:
            return
        members = self._members.setdefault(gang.key, _WrittenMembers())
        scheduler = spec.scheduler_name or "default-scheduler"
        priority = spec.priority_class_name or spec.priority or 0
        members.priorities[priority] = None
        some = members.some.setdefault(scheduler, [])
        if len(some) <= _NAMED:
            some.append(MemberWords(pod.metadata.name, gang.least, priority, scheduler))

    def read(self, pod: Pod) -> KnownGroup:
        """Return the pod's group; its size is unknown if it is stated in an object outside the
        manifests."""
        known = self._read(pod)
        members = self._members.get(known.gang.key) if known.gang else None
        if members is None:
            return known
        mixed = members.mixed(str(known.gang), pod.spec.scheduler_name or "default-scheduler")
        return known._replace(warnings=(*known.warnings, *mixed))

    def _read(self, pod: Pod) -> KnownGroup:
        words = words_of(pod, written=True)
        if words.gang is UNSET or not words.object_of:
            return KnownGroup(words.gang, words.warnings)
        gang = words.gang
        policy = self._policies.get((words.object_of, gang.namespace, gang.name))
        if policy is None:
            return KnownGroup(gang, words.warnings)
        return with_policy(words, policy)


class GroupView:
    """The existing PodGroups, and which pods are in which group. `moved` are UIDs of pods whose
    group changed since they were last reported; `on_follow` is called with a system when its
    PodGroups begin to be followed. `ours` are the schedulerNames whose pods are placed here, None
    for all. Pods of a group that needs more than `most` together stay pending."""

    def __init__(self, ours: Collection[str] | None = None, most: int = MOST_GANG_PODS) -> None:
        self._most = most
        self.on_follow: list[Callable[[str], None]] = []
        self.moved: dict[str, None] = {}
        self._ours = ours
        self._objects: dict[ObjectKey, KubePodGroup] = {}
        self._policies: dict[ObjectKey, GroupPolicy] = {}
        self._followed: dict[str, Resource[KubePodGroup]] = {}
        self._members: dict[str, _Members] = {}  # by the group's key
        self._group_of: dict[str, str] = {}  # by UID
        self._asking: dict[ObjectKey, dict[str, None]] = {}  # by object: groups of that size
        self._by_owner: set[str] = set()  # namespaces with `weft.dev/gang: owner`
        self._owned: dict[str, dict[str, None]] = {}  # UIDs by namespace

    def take_moved(self, most: int) -> list[str]:
        """Take out and return at most `most` of the pods in `moved`."""
        return [self.moved.popitem()[0] for _ in range(min(most, len(self.moved)))]

    def object(self, key: ObjectKey) -> tuple[Resource[KubePodGroup], KubePodGroup] | None:
        """Return the followed version and the PodGroup as it was last shown; None if it does not
        exist or its kind is not followed."""
        kind, group = self._followed.get(key[0]), self._objects.get(key)
        return None if kind is None or group is None else (kind, group)

    def follow(self, system: str, kind: Resource[KubePodGroup]) -> None:
        """Note that all of this system's PodGroups were listed, in this version, and that changes
        of them are reported from now on."""
        if system not in self._followed:
            self._followed[system] = kind
            for hear in self.on_follow:
                hear(system)
            for key, names in self._asking.items():
                if key[0] == system:
                    self._tell(names)

    def take(self, system: str, change: Change[KubePodGroup]) -> None:
        """Take in an added, changed or deleted PodGroup of this system."""
        group = change.object  # type: ignore[union-attr]
        key = (system, group.metadata.namespace, group.metadata.name)
        before = self._policies.pop(key, None)
        self._objects.pop(key, None)
        if not isinstance(change, Deleted):
            self._policies[key], self._objects[key] = policy_of(system, group), group
        if self._policies.get(key) != before:
            self._tell(self._asking.get(key, ()))

    def take_namespace(self, change: Change[MetaOnly]) -> None:
        """Take in an added, changed or deleted namespace."""
        meta = change.object.metadata  # type: ignore[union-attr]
        says = not isinstance(change, Deleted) and (meta.annotations or {}).get(GANG) == BY_OWNER
        if says != (meta.name in self._by_owner):
            (self._by_owner.add if says else self._by_owner.discard)(meta.name)
            self.moved |= self._owned.get(meta.name, {})

    def use(self, pod: Pod) -> None:
        """Take in the pod as it is now."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if pod.ended:
            self.release(pod)
            return
        if could_have_by_namespace(pod):
            self._owned.setdefault(namespace, {})[uid] = None
        if uid in self._group_of or self._may_have(pod):
            self._join(pod, self._words(pod))

    def release(self, pod: Pod) -> None:
        """Forget a pod that is gone or has ended."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if (owned := self._owned.get(namespace)) is not None:
            owned.pop(uid, None)
            if not owned:
                del self._owned[namespace]
        self._leave(uid)
        self.moved.pop(uid, None)

    def read(self, pod: Pod) -> KnownGroup:
        """Return the pod's group as it is now."""
        if not self._may_have(pod):
            return NO_GROUP
        words = self._words(pod)
        gang = words.gang
        if gang is UNSET:
            return KnownGroup(UNSET, words.warnings)
        known = _within(self._known(words, gang), self._most)
        if known.gang and (members := self._members.get(gang.key)) is not None:
            return known._replace(warnings=(*known.warnings, *members.mixed(str(gang))))
        return known

    def _known(self, words: GroupWords, gang: Gang) -> KnownGroup:
        if words.object_of:
            policy = self._policies.get((words.object_of, gang.namespace, gang.name))
            if policy is not None:
                return with_policy(words, policy)
        return self._as_stated(words, gang)

    def _may_have(self, pod: Pod) -> bool:
        return may_have_group(pod, by_namespace=pod.metadata.namespace in self._by_owner)

    def _words(self, pod: Pod) -> GroupWords:
        return words_of(pod, by_namespace=pod.metadata.namespace in self._by_owner)

    def _as_stated(self, words: GroupWords, gang: Gang) -> KnownGroup:
        """Return the group with the largest size that its pods state, as it has no PodGroup."""
        members = self._members.get(gang.key)
        sizes = {*(members.sizes if members is not None else ()), gang.least} - {0}
        if words.object_of and not sizes:
            missing = self._missing(words.object_of, gang)
            return KnownGroup(gang, (*words.warnings, missing))
        if not sizes or (not gang.least and not words.object_of):
            return KnownGroup(gang, words.warnings)  # its size is unreadable
        least, warnings = max(sizes), words.warnings
        if len(sizes) > 1:
            stated = " and ".join(map(str, sorted(sizes)[:2])) + ", …" * (len(sizes) > 2)
            text = (
                f"pods of group {gang} state sizes {stated}: {least} counts; write one size on all"
            )
            warnings = (*warnings, text)
        return KnownGroup(replace(gang, least=least), warnings)

    def _missing(self, system: str, gang: Gang) -> str:
        api = api_group(GROUP_KINDS[system][0])
        if system not in self._followed:
            why = f"no podgroups.{api} in the API server, or no permission to list and watch them"
            return f"the pod waits for its PodGroup {gang}, which cannot be read: {why}"
        fix = "create it, or remove its name from the pod"
        return f"there is no PodGroup {gang} of {api}, and the pod waits: {fix}"

    def _join(self, pod: Pod, words: GroupWords) -> None:
        uid, gang = pod.metadata.uid, words.gang
        if gang is UNSET or self._group_of.get(uid, gang.key) != gang.key:
            self._leave(uid)
        if gang is UNSET:
            return
        members = self._members.setdefault(gang.key, _Members())
        self._group_of[uid] = gang.key
        if members.put(uid, self._says(pod, gang)) and len(members.stated) > 1:
            self._tell([gang.key])
        if words.object_of:
            key = (words.object_of, gang.namespace, gang.name)
            members.objects.add(key)
            self._asking.setdefault(key, {})[gang.key] = None

    def _says(self, pod: Pod, gang: Gang) -> MemberWords:
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        ours = self._ours is None or scheduler in self._ours
        elsewhere = "" if pod.spec.node_name or ours else scheduler
        return MemberWords(pod.metadata.name, gang.least, pod.spec.priority or 0, elsewhere)

    def _leave(self, uid: str) -> None:
        name = self._group_of.pop(uid, "")
        members = self._members.get(name)
        if members is None:
            return
        if members.drop(uid):
            self._tell([name])
        if members.stated:
            return
        del self._members[name]
        for key in members.objects:
            asking = self._asking[key]
            asking.pop(name, None)
            if not asking:
                del self._asking[key]

    def _tell(self, names: Iterable[str]) -> None:
        """Queue the pods of these groups to be reported again."""
        for name in names:
            if (members := self._members.get(name)) is not None:
                self.moved |= dict.fromkeys(members.stated)
