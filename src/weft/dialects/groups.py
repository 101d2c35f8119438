"""Reads a pod's group from its own fields, labels and annotations, in each system's form, as one
`Gang`.

    kubernetes         spec.schedulingGroup.podGroupName          size in its PodGroup
    scheduler-plugins  label scheduling.x-k8s.io/pod-group        size in its PodGroup
    volcano            annotation scheduling.k8s.io/group-name    size in its PodGroup
    koordinator        annotations gang.scheduling.koordinator.sh/…, or its two old labels
    owner              annotation weft.dev/gang: owner, on the pod or its namespace

If a pod names several groups, the first in this order counts, with a warning. A size that only
the group's PodGroup has is 0 (unknown) here: `cluster/state/groups.py` fills it in. A value that
cannot be read causes a warning, never an error: a pod whose group has an unreadable name or size
stays pending, as it would with the scheduler that it was written for.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from weft.model import Gang, PodManifest
from weft.model.annotations import GANG, GANG_SIZE
from weft.model.ceilings import MOST_LETTERS

KUBERNETES, SCHEDULER_PLUGINS, VOLCANO = "kubernetes", "scheduler-plugins", "volcano"
KOORDINATOR, OWNER = "koordinator", "owner"

POD_GROUP = "scheduling.x-k8s.io/pod-group"
GROUP_NAMES = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
TASK = "volcano.sh/task-spec"
KOORDINATOR_NAME = "gang.scheduling.koordinator.sh/name"
KOORDINATOR_LEAST = "gang.scheduling.koordinator.sh/min-available"
KOORDINATOR_TOTAL = "gang.scheduling.koordinator.sh/total-number"
KOORDINATOR_WAITS = "gang.scheduling.koordinator.sh/waiting-time"
KOORDINATOR_MODE = "gang.scheduling.koordinator.sh/mode"
KOORDINATOR_GROUPS = "gang.scheduling.koordinator.sh/groups"
KOORDINATOR_MATCH = "gang.scheduling.koordinator.sh/match-policy"
OLD_NAME = "pod-group.scheduling.sigs.k8s.io/name"
OLD_LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"
_MODES = ("Strict", "NonStrict")
_MATCHES = ("only-waiting", "waiting-and-running", "once-satisfied")

BY_OWNER, BY_ITSELF = "owner", "none"
"""Values of `weft.dev/gang`. "owner": the pod's group is all pods of its owner; "none": the pod has
no group."""
JOB_SET = "jobset.sigs.k8s.io/jobset-name"
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LWS_KEY = "leaderworkerset.sigs.k8s.io/group-key"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBS = ("batch.kubernetes.io/job-name", "job-name")

READ_ANNOTATIONS = (
    *GROUP_NAMES,
    TASK,
    KOORDINATOR_NAME,
    KOORDINATOR_LEAST,
    KOORDINATOR_TOTAL,
    KOORDINATOR_WAITS,
    KOORDINATOR_MODE,
    KOORDINATOR_GROUPS,
    KOORDINATOR_MATCH,
    LWS_SIZE,
    GANG,
    GANG_SIZE,
)
"""The annotations of a pod from which its group is read."""
_LABELS = frozenset((POD_GROUP, OLD_NAME))
_ANNOTATIONS = frozenset((*GROUP_NAMES, KOORDINATOR_NAME, GANG, GANG_SIZE))
_OWNED = frozenset((JOB_SET, LWS_KEY, *JOBS))

_MOST_DIGITS, _MOST_SHOWN, _MOST_LISTED = 9, 40, 16_384
_NUMBER = re.compile(r"[+-]?\d+", re.A)
_FIELD = "spec.schedulingGroup.podGroupName"
_GO_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h))+", re.A)


class GroupWords(NamedTuple):
    """A pod's group by its fields, labels and annotations; `gang` is unset for a pod without a
    group.

    `object_of`: the system whose PodGroup of that name has the group's size, or "owner" if a
    controller is to write the size on the pod; "" if the pod has it. `waits`: the longest time that
    the system would hold places for the group, as written; "" if not given.
    """

    gang: Gang | UnsetType = UNSET
    warnings: tuple[str, ...] = ()
    object_of: str = ""
    waits: str = ""


ON_ITS_OWN = GroupWords()


def may_have_group(pod: PodManifest, *, by_namespace: bool = False) -> bool:
    """Return True if the pod mentions a group; with `by_namespace` (its namespace has
    `weft.dev/gang: owner`) also if its labels name an owner. The check is quick, as most pods
    mention none."""
    meta = pod.metadata
    labels, annotations = meta.labels, meta.annotations
    return bool(
        pod.spec.scheduling_group is not None
        or (labels and not _LABELS.isdisjoint(labels))
        or (annotations and not _ANNOTATIONS.isdisjoint(annotations))
        or (by_namespace and labels and not _OWNED.isdisjoint(labels))
    )


def could_have_by_namespace(pod: PodManifest) -> bool:
    """Return True if the pod would be in a group, that of its owner, if its namespace had
    `weft.dev/gang: owner`."""
    labels = pod.metadata.labels
    return bool(labels) and not _OWNED.isdisjoint(labels or ())


def group_of(
    pod: PodManifest, *, owner: str = "", by_namespace: bool = False, written: bool = False
) -> GroupWords:
    """Return the pod's group by its fields, labels and annotations. `owner` is the pod's controller
    as kind and name, such as `PyTorchJob/train`, "" for none; `by_namespace`: the pod's namespace
    has `weft.dev/gang: owner`; `written`: the manifest is from a file, so it lacks what controllers
    write on pods."""
    if not may_have_group(pod, by_namespace=by_namespace):
        return ON_ITS_OWN
    words = _Words(pod, owner, by_namespace, written)
    found = words.found()
    if not found:
        return words.none()
    system, name = found[0]
    if len(found) > 1:
        said = " and ".join(f"{each} ({words.where[each]})" for each, _ in found)
        words.warn(
            f"it declares its group in the form of {said}: the first counts; keep one of them"
        )
    if len(name) > MOST_LETTERS:
        text = f"{words.where[system]} has {len(name):,} characters, more than {MOST_LETTERS}"
        words.warn(f"{text}: the pod waits; shorten it")
        return words.of(Gang(system, words.namespace, name[:MOST_LETTERS]))
    return words.read(system, name)


class _Words:
    """One pod's fields, labels and annotations about its group, and the warnings about them."""

    def __init__(self, pod: PodManifest, owner: str, by_namespace: bool, written: bool) -> None:
        meta = pod.metadata
        self.namespace = meta.namespace or "default"
        self.where: dict[str, str] = {}  # by system, the field that names the group
        self._pod, self._owner, self._written = pod, owner, written
        self._labels: Mapping[str, str] = meta.labels or {}
        self._annotations: Mapping[str, str] = meta.annotations or {}
        self._warnings: list[str] = []
        said = self._annotations.get(GANG)
        if said is not None and said not in (BY_OWNER, BY_ITSELF):
            text = f"annotation {GANG} is {_shown(said)}: write {BY_OWNER} or {BY_ITSELF}"
            self.warn(text)
        self._itself = said == BY_OWNER
        self._by_owner = self._itself or (by_namespace and said is None)

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def of(self, gang: Gang, object_of: str = "", waits: str = "") -> GroupWords:
        return GroupWords(gang, tuple(self._warnings), object_of, waits)

    def none(self) -> GroupWords:
        if GANG_SIZE in self._annotations and not self._by_owner:
            self.warn(
                f"annotation {GANG_SIZE} sets a group's size but not the group: write {GANG}: "
                f"{BY_OWNER} as well"
            )
        return GroupWords(warnings=tuple(self._warnings))

    def found(self) -> list[tuple[str, str]]:
        """Return the systems in whose form the pod names a group, in order of precedence, each with
        the group's name."""
        group = self._pod.spec.scheduling_group
        names = [
            (KUBERNETES, (group.pod_group_name or "") if group is not None else "", _FIELD),
            (SCHEDULER_PLUGINS, self._labels.get(POD_GROUP, ""), f"label {POD_GROUP}"),
            (VOLCANO, *self._volcano()),
            (KOORDINATOR, *self._koordinator()),
            (OWNER, self._owning() if self._by_owner else "", f"annotation {GANG}"),
        ]
        self.where = {system: where for system, _, where in names}
        return [(system, name) for system, name, _ in names if name]

    def read(self, system: str, name: str) -> GroupWords:
        """Return the group of this name, read in this system's form."""
        if system == KOORDINATOR:
            return self._read_koordinator(name)
        if system == OWNER:
            return self._read_owner(name)
        task = self._annotations.get(TASK, "")[:MOST_LETTERS] if system == VOLCANO else ""
        return self.of(Gang(system, self.namespace, name, task=task), object_of=system)

    def _volcano(self) -> tuple[str, str]:
        """Return the group's name, and the annotation that has it."""
        names = [(self._annotations.get(key, ""), f"annotation {key}") for key in GROUP_NAMES]
        said = [each for each in names if each[0]]
        if len({name for name, _ in said}) > 1:
            two = " and ".join(f"{where} ({_shown(name)})" for name, where in said)
            self.warn(f"it is in two groups of Volcano, {two}: the first counts; remove one")
        return said[0] if said else names[0]

    def _koordinator(self) -> tuple[str, str]:
        name = self._annotations.get(KOORDINATOR_NAME, "")
        if name:
            return name, f"annotation {KOORDINATOR_NAME}"
        return self._labels.get(OLD_NAME, ""), f"label {OLD_NAME}"

    def _read_koordinator(self, name: str) -> GroupWords:
        said, key = self._annotations, KOORDINATOR_LEAST
        if not said.get(KOORDINATOR_NAME):
            least = self._size(f"label {OLD_LEAST}", self._labels.get(OLD_LEAST, ""))
            return self.of(Gang(KOORDINATOR, self.namespace, name, least))
        text = said.get(key, "")
        object_of = "" if text else SCHEDULER_PLUGINS  # a PodGroup of scheduler-plugins may say it
        least = self._size(f"annotation {key}", text) if text else 0
        if KOORDINATOR_TOTAL in said and text:
            total = self._size(f"annotation {KOORDINATOR_TOTAL}", said[KOORDINATOR_TOTAL])
            if 0 < total < least:
                few = f"annotation {KOORDINATOR_TOTAL} is {total}, fewer than {key}: {least}"
                self.warn(f"{few}: Weft waits for {least} pods")
        for field, allowed in ((KOORDINATOR_MODE, _MODES), (KOORDINATOR_MATCH, _MATCHES)):
            if said.get(field, allowed[0]) not in allowed:
                which = " or ".join(allowed)
                self.warn(f"annotation {field} is {_shown(said[field])} and ignored: write {which}")
        waits = said.get(KOORDINATOR_WAITS, "")
        if waits and not _GO_DURATION.fullmatch(waits):
            text = f"annotation {KOORDINATOR_WAITS} is {_shown(waits)} and ignored"
            self.warn(f"{text}: write a duration like 10m")
            waits = ""
        self._warn_of_others(name)
        return self.of(Gang(KOORDINATOR, self.namespace, name, least), object_of, waits)

    def _warn_of_others(self, name: str) -> None:
        """Warn of other groups that should start together with this group."""
        text = self._annotations.get(KOORDINATOR_GROUPS, "")
        if not text:
            return
        try:
            listed = json.loads(text) if len(text) <= _MOST_LISTED else None
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            shown = f"annotation {KOORDINATOR_GROUPS} is {_shown(text)} and ignored"
            self.warn(f"{shown}: write a JSON list of namespace/name")
            return
        others = [each for each in listed if each != f"{self.namespace}/{name}"]
        if others:
            beside = ", ".join(_shown(each) for each in others[:3]) + ", …" * (len(others) > 3)
            self.warn(
                f"annotation {KOORDINATOR_GROUPS} names {beside} besides its own group: each of "
                "these groups starts on its own"
            )

    def _owning(self) -> str:
        """Return kind and name of the owner whose pods are the group; "" if the pod has no such
        owner.

        If only the namespace asks for groups, pods of owners other than a JobSet, LeaderWorkerSet
        or Job, and pods of Jobs without a size, have no group.
        """
        labels = self._labels
        job = next((labels[key] for key in JOBS if labels.get(key)), "")
        if labels.get(JOB_SET):
            return f"JobSet/{labels[JOB_SET]}"
        if labels.get(LWS_KEY):
            of_set = labels.get(LWS_NAME) and labels.get(LWS_INDEX)
            key = f"{labels[LWS_NAME]}-{labels[LWS_INDEX]}" if of_set else labels[LWS_KEY]
            return f"LeaderWorkerSet/{key}"
        if job and (self._itself or GANG_SIZE in self._annotations):
            return f"Job/{job}"
        if self._itself and not self._owner:
            text = f"annotation {GANG} is {BY_OWNER}, and the pod has no owner that Weft supports"
            self.warn(f"{text}: it is placed alone")
        return self._owner if self._itself else ""

    def _read_owner(self, name: str) -> GroupWords:
        said = self._annotations
        if GANG_SIZE in said:
            least = self._size(f"annotation {GANG_SIZE}", said[GANG_SIZE])
        elif name.startswith("LeaderWorkerSet/") and said.get(LWS_SIZE):
            least = self._size(f"annotation {LWS_SIZE}", said[LWS_SIZE])
        elif self._written and name.startswith("LeaderWorkerSet/"):
            return self.of(Gang(OWNER, self.namespace, name), object_of=OWNER)
        else:
            least = 0
            jobs = "its labels count its Jobs, which may have several pods each; "
            self.warn(
                f"it is unknown how many pods of {name} must start together, so it stays pending: "
                f"{jobs if name.startswith('JobSet/') else ''}write annotation {GANG_SIZE} on its "
                "pods"
            )
        return self.of(Gang(OWNER, self.namespace, name, least))

    def _size(self, where: str, text: str) -> int:
        """Return the number of pods in `text`, the value of the field `where`; 0, so that the pod
        waits, if it is not a number."""
        if not _NUMBER.fullmatch(text) or len(text) > _MOST_DIGITS:
            self.warn(
                f"{where} is {_shown(text)}, not a number of pods, so the pod stays "
                "pending; write a number such as 4"
            )
            return 0
        return least_of(where, int(text), self._warnings)


def least_of(where: str, size: int, warnings: list[str]) -> int:
    """Return the size of a group, at least 1; a smaller size is reported in `warnings`."""
    if size < 1:
        warnings.append(f"{where} is {size}: a group has at least 1 pod, so 1 is used")
    return max(1, size)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")
