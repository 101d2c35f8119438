"""Writes the status of scheduler-plugins' PodGroups, by which `kubectl get podgroups` shows them:

  Pending      fewer pods than minMember have nodes
  Scheduling   at least minMember pods have nodes, and fewer run
  Running      at least minMember pods run or have succeeded
  Finished     at least minMember pods have succeeded: final
  Failed       a pod failed, and at least minMember pods run or have ended: final

scheduler-plugins' own controller writes the same. A PodGroup whose status anybody but Weft wrote,
as its managedFields tell, is therefore left alone. A write that conflicts with another one is
repeated after the watch has shown the other."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from weft.cluster.control.interface import Attempt, BindOutcome
from weft.cluster.control.leadership import LeaderTask
from weft.cluster.rights import GROUP_STATUS
from weft.cluster.state.groups import ObjectKey
from weft.cluster.state.pods import PodView
from weft.core.engine import Unschedulable
from weft.dialects.group_objects import KubePodGroup, policy_of
from weft.dialects.groups import POD_GROUP, SCHEDULER_PLUGINS
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.conditions import patch_status, transition_time
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.pods import Pod

log = logging.getLogger("weft.cluster")
FINAL = ("Finished", "Failed")
_TIMEOUT_S, _INTERVAL_S = 3.0, 5.0


class _GroupPods:
    """The pods of a group that have nodes: the phase of each, by UID."""

    def __init__(self) -> None:
        self.phases: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.owners = ""

    def put(self, pod: Pod) -> bool:
        """Take in a pod; return True if the counts changed."""
        uid, phase = pod.metadata.uid, pod.status.phase
        if self.phases.get(uid) == phase:
            return False
        self.drop(uid)
        self.phases[uid] = phase
        self.counts[phase] += 1
        meta = pod.metadata
        owners = sorted(f"{meta.namespace}/{each.name}" for each in meta.owner_references or ())
        self.owners = self.owners or ",".join(owners)
        return True

    def drop(self, uid: str) -> None:
        """Forget a pod that is gone."""
        phase = self.phases.pop(uid, None)
        if phase is not None:
            self.counts[phase] -= 1


class GroupStatuses:
    """Writes the statuses of one cluster's PodGroups while `leading`, each at most every
    `interval_s` seconds."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodView,
        may_write: Callable[[float], bool] | None,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self.leading = False
        self._client, self._pods, self._may_write = client, pods, may_write
        self._interval_s, self._refused = interval_s, False
        self._groups: dict[ObjectKey, _GroupPods] = {}
        self._key_of: dict[str, ObjectKey] = {}  # by UID of pods with a node
        self._due: dict[ObjectKey, float] = {}  # not before this time
        self._task = LeaderTask(self._write_all, self._has_work, "statuses of PodGroups")

    def lead(self) -> None:
        """Begin to lead, and correct statuses that are out of date."""
        self.leading = True
        self.observe(pod for pod in self._pods.pods.values() if pod.spec.node_name)

    def observe(self, pods: Iterable[Pod]) -> None:
        """Take in pods with a node that are new or changed."""
        for pod in pods if self.leading else ():
            name = (pod.metadata.labels or {}).get(POD_GROUP)
            if name and self._pods.ours(pod):
                key = SCHEDULER_PLUGINS, pod.metadata.namespace, name
                if self._key_of.get(pod.metadata.uid, key) != key:
                    self.forget(pod.metadata.uid)
                self._key_of[pod.metadata.uid] = key
                if self._groups.setdefault(key, _GroupPods()).put(pod):
                    self._write_soon(key)

    def hear(self, outcome: Attempt | BindOutcome) -> None:
        """Note a decision: if a group's pod cannot be placed, check the group's status."""
        request = outcome.command.pod
        if self.leading and request is not None and isinstance(outcome.command, Unschedulable):
            gang = request.gang
            if gang and gang.system == SCHEDULER_PLUGINS:
                self._write_soon((SCHEDULER_PLUGINS, gang.namespace, gang.name))

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        self._groups[key].drop(uid)
        self._write_soon(key)

    async def stop(self) -> None:
        """Stop writing."""
        self.leading = False
        await self._task.stop()

    def _write_soon(self, key: ObjectKey) -> None:
        self._due.setdefault(key, 0.0)
        self._task.start()

    def _has_work(self) -> bool:
        return self.leading and bool(self._due) and not self._refused

    async def _write_all(self) -> None:
        """Write the statuses that are due, until none was due for an interval."""
        clock, written = self._client.clock, dict[ObjectKey, float]()
        while self.leading and not self._refused and (self._due or written):
            now = clock.monotonic()
            written = {key: at for key, at in written.items() if at > now}
            for key in [key for key, at in self._due.items() if at <= now and key not in written]:
                del self._due[key]
                if not await self._write(key):
                    self._due[key] = now + self._interval_s
                written[key] = now + self._interval_s
            await clock.sleep(self._interval_s / 10)

    async def _write(self, key: ObjectKey) -> bool:
        """Write the group's status if it changed; return True unless a retry is needed."""
        pods = self._groups.get(key) or _GroupPods()
        if not pods.phases:
            self._groups.pop(key, None)
        if (shown := self._pods.groups.object(key)) is None:
            return True
        kind, group = shown
        status = self._news(group, pods)
        if not status or _has_another_writer(group, self._client.options.user_agent):
            return True
        if self._may_write is not None and not self._may_write(2 * _TIMEOUT_S):
            return False
        return await self._patch(kind.of(key[1], key[2], "status"), group, status)

    async def _patch(self, path: str, group: KubePodGroup, status: dict[str, object]) -> bool:
        meta = group.metadata
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            await patch_status(self._client, path, seen, status, MERGE_PATCH)
        except NotFoundError:
            return True  # it is gone, or another one has its name
        except ConflictError:
            return False
        except (ApiError, LostError, NotSentError) as error:
            self._refused = isinstance(error, ApiError) and error.code == 403
            if self._refused:
                lacking = ", ".join(map(str, GROUP_STATUS[SCHEDULER_PLUGINS]))
                log.warning("PodGroups' statuses are not written: no permission to %s", lacking)
            else:
                text = "the status of PodGroup %s/%s is written again later: %s"
                log.warning(text, meta.namespace, meta.name, error)
            return self._refused
        return True

    def _news(self, group: KubePodGroup, pods: _GroupPods) -> dict[str, object]:
        """Return the fields of the status that differ from the ones shown."""
        shown, least = group.status, policy_of(SCHEDULER_PLUGINS, group).least
        if shown.phase in FINAL or not least:
            return {}
        status: dict[str, object] = {
            "phase": phase_of(len(pods.phases), pods.counts, least),
            "running": pods.counts["Running"],
            "succeeded": pods.counts["Succeeded"],
            "failed": pods.counts["Failed"],
        }
        if pods.owners and not shown.occupied_by:
            status["occupiedBy"] = pods.owners
        if pods.phases and not shown.schedule_start_time:
            status["scheduleStartTime"] = transition_time(self._client.clock)
        before = {"phase": shown.phase, "running": shown.running}
        before |= {"succeeded": shown.succeeded, "failed": shown.failed}
        return {name: value for name, value in status.items() if before.get(name) != value}


def phase_of(placed: int, counts: Counter[str], least: int) -> str:
    """Return the phase of a group with `placed` pods that have nodes; `counts` are these pods by
    their phase, `least` is the group's minMember."""
    running, succeeded, failed = (counts[each] for each in ("Running", "Succeeded", "Failed"))
    if succeeded >= least:
        return "Finished"
    if failed and failed + running + succeeded >= least:
        return "Failed"
    if running + succeeded >= least:
        return "Running"
    return "Scheduling" if placed >= least else "Pending"


def _has_another_writer(group: KubePodGroup, own: str) -> bool:
    """Return True if somebody else wrote the status, now or earlier."""
    managers = group.metadata.managed_fields or ()
    return any(each.manager != own for each in managers if each.fields_v1.status)
