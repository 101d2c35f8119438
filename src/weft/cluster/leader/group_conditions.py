"""Writes conditions on Kubernetes' PodGroups that say whether enough of their pods are bound.

  Kubernetes 1.36   condition PodGroupScheduled
  Kubernetes 1.37   condition PodGroupInitiallyScheduled

True is written once as many of the group's pods are bound as it needs, and is final, as with
kube-scheduler. False is written with the reason why a pod waits, at most once a minute, and when
the group's last pod arrives. A failed write is repeated."""

import logging
from collections.abc import Callable

from weft.cluster.control.interface import Attempt, BindOutcome
from weft.cluster.control.leadership import LeaderTask
from weft.cluster.rights import GROUP_STATUS
from weft.cluster.state.groups import KUBE_GROUPS, ObjectKey
from weft.cluster.state.pods import PodView
from weft.core.engine import Unschedulable
from weft.core.explain.sentences import gang_refused_in_words
from weft.dialects.group_objects import KubePodGroup, policy_of
from weft.dialects.groups import KUBERNETES
from weft.kube.bind import Bound
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.conditions import MESSAGE_BYTES, patch_status, transition_time
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.events import shortened
from weft.kube.pods import Pod
from weft.model import PodRequest

log = logging.getLogger("weft.cluster")
_TIMEOUT_S = 3.0
_INTERVAL_S = 60.0
_FIRST_S, _MOST_S = 1.0, 60.0
_KEPT = 1_000
"""Maximum number of groups remembered as placed until the watch shows their condition."""


class GroupConditions:
    """Writes conditions on PodGroups, after one cluster's decisions, while `leading`. `why` returns
    the reason why a pod waits."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        why: Callable[[PodRequest], str],
        may_write: Callable[[float], bool] | None,
    ) -> None:
        self.leading = False
        self._client, self._pods, self._why = client, pods, why
        self._may_write, self._refused = may_write, False
        self._bound: dict[ObjectKey, set[str]] = {}  # UIDs of its pods that have places
        self._key_of: dict[str, ObjectKey] = {}  # by UID, of these
        self._told: dict[
            ObjectKey, tuple[float, bool]
        ] = {}  # that its pods wait: see `_note_waiting`
        self._placed: dict[ObjectKey, str] = {}  # UIDs of PodGroups that have, or get, True
        self._due: dict[ObjectKey, str] = {}  # why its pods wait; "" where they do not
        self._task = LeaderTask(self._write_all, self._has_work, "conditions of PodGroups")

    def lead(self) -> None:
        """Begin to lead, and write the conditions of groups whose pods were bound before, if they
        are missing."""
        self.leading = True
        for pod in list(self._pods.pods.values()):
            if pod.spec.scheduling_group is not None and pod.spec.node_name:
                self._note_bound(pod)

    def hear(self, outcome: Attempt | BindOutcome) -> None:
        """Note a decision about a group's pod, or the outcome of its binding."""
        request = outcome.command.pod
        if not self.leading or request is None or request.shape.constraints.judged_elsewhere:
            return
        pod = self._pods.by_uid(request.uid)
        if pod is None or pod.spec.scheduling_group is None:
            return
        if isinstance(outcome, BindOutcome):
            if isinstance(outcome.outcome, Bound):
                self._note_bound(pod)
        elif isinstance(outcome.command, Unschedulable):
            self._note_waiting(pod, outcome.command)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        key = self._key_of.pop(uid, None)
        if key is not None and (bound := self._bound.get(key)) is not None:
            bound.discard(uid)
            if not bound:
                del self._bound[key]

    async def stop(self) -> None:
        """Stop writing."""
        self.leading = False
        await self._task.stop()

    def _note_bound(self, pod: Pod) -> None:
        """Count a bound pod, even if its PodGroup is missing, because the group may be created
        again."""
        key = _key(pod)
        if pod.ended or not self._pods.ours(pod):
            return
        self._key_of[pod.metadata.uid] = key
        bound = self._bound.setdefault(key, set())
        bound.add(pod.metadata.uid)
        if (shown := self._pods.groups.object(key)) is None:
            return
        policy = policy_of(KUBERNETES, shown[1])
        if policy.least and len(bound) >= policy.least:
            self._told.pop(key, None)
            self._placed[key] = shown[1].metadata.uid
            if len(self._placed) > _KEPT:
                del self._placed[next(iter(self._placed))]
            self._write(key, "")

    def _note_waiting(self, pod: Pod, command: Unschedulable) -> None:
        """Write why the pod waits, at most once a minute, but immediately if the group became
        complete or incomplete, because the reason changes then."""
        key, now = _key(pod), self._client.clock.monotonic()
        record, gang = command.record, command.record.gang
        gathers = bool(gang and gang.there < gang.least)
        until_s, gathered = self._told.get(key, (now, gathers))
        if (shown := self._pods.groups.object(key)) is None:
            return
        had_places = self._placed.get(key) == shown[1].metadata.uid
        if had_places or (now < until_s and gathers == gathered):
            return
        self._told[key] = now + _INTERVAL_S, gathers
        why = self._why(command.pod) if not gang else ""
        if gang:
            why = gang_refused_in_words(record, gang, command.pod)
        self._write(key, f"pod {pod.metadata.name}: {why}")

    def _write(self, key: ObjectKey, why: str) -> None:
        if self._refused:
            return
        self._due[key] = why
        self._task.start()

    def _has_work(self) -> bool:
        return self.leading and bool(self._due) and not self._refused

    async def _write_all(self) -> None:
        backoff = Backoff(_FIRST_S, _MOST_S, self._client.rng)
        while self.leading and self._due and not self._refused:
            failed: dict[ObjectKey, str] = {}
            while self._due:
                key = next(iter(self._due))
                why = self._due.pop(key)
                if not await self._tell(key, why):
                    failed[key] = why
            if failed:
                self._due = failed | self._due
                await self._client.clock.sleep(backoff.next_s())

    async def _tell(self, key: ObjectKey, why: str) -> bool:
        """Write the group's condition if it changed; return True unless a retry is needed."""
        if (shown := self._pods.groups.object(key)) is None:
            return True
        kind, group = shown
        name = "PodGroupInitiallyScheduled" if kind is KUBE_GROUPS else "PodGroupScheduled"
        condition = _news(group, name, shortened(why, MESSAGE_BYTES))
        if condition is None:
            return True
        if self._may_write is not None and not self._may_write(2 * _TIMEOUT_S):
            return False
        return await self._patch(kind.of(key[1], key[2], "status"), group, condition)

    async def _patch(self, path: str, group: KubePodGroup, condition: dict[str, str]) -> bool:
        if "lastTransitionTime" in condition:
            condition = {**condition, "lastTransitionTime": transition_time(self._client.clock)}
        meta = group.metadata
        try:
            await patch_status(self._client, path, {"uid": meta.uid}, {"conditions": [condition]})
        except (NotFoundError, ConflictError):
            return True  # it is gone, or another one has its name
        except (ApiError, LostError, NotSentError) as error:
            code = error.code if isinstance(error, ApiError) else 0
            if code == 403 and self._refused:
                return True  # already logged for another group
            if code == 403:
                self._refused = True
                lacking = ", ".join(map(str, GROUP_STATUS[KUBERNETES]))
                log.warning("PodGroups' conditions are not updated: no permission to %s", lacking)
                return True
            text = "the condition of PodGroup %s/%s is written again later: %s"
            log.warning(text, meta.namespace, meta.name, error)
            return False
        return True


def _key(pod: Pod) -> ObjectKey:
    group = pod.spec.scheduling_group
    name = (group.pod_group_name or "") if group is not None else ""
    return KUBERNETES, pod.metadata.namespace, name


def _news(group: KubePodGroup, name: str, why: str) -> dict[str, str] | None:
    """Return the condition to write, None if it equals the present one or that one is True, which
    is final. If the status changes, lastTransitionTime is "", to be filled in."""
    known = next((c for c in group.status.conditions or () if c.type == name), None)
    status = "False" if why else "True"
    if known is not None and known.status == "True":
        return None
    if known is not None and (known.status, known.message) == (status, why):
        return None
    reason = "Unschedulable" if why else "Scheduled"
    condition = {"type": name, "status": status, "reason": reason, "message": why}
    if known is None or known.status != status:
        condition["lastTransitionTime"] = ""
    return condition
