"""A pod's status as a hollow kubelet writes it, in the words of a real one. Pure."""

from typing import Any

from fakes.hollow_life import Exit, Life
from fakes.hollow_pod import HollowContainer, HollowPod, time_text

Json = dict[str, Any]

_WHY_NOT_READY = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
CREATING, BACKING_OFF = "ContainerCreating", "CrashLoopBackOff"


def status_of(pod: HollowPod, life: Life) -> Json:
    """The pod's status as its life stands now, for a strategic merge patch."""
    ready = life.stage == "running"
    last = life.last if life.stage != "ended" else None
    counts = {"restartCount": life.restarts, "ready": ready, "started": ready}
    return {
        "phase": life.phase,
        "startTime": time_text(life.born_s),
        "conditions": _conditions(life, ready),
        "containerStatuses": [
            {
                "name": container.name,
                "image": container.image,
                "imageID": "",
                **counts,
                "state": _state(life, container),
                "lastState": {"terminated": _terminated(last, container)} if last else {},
            }
            for container in pod.spec.containers
        ],
    }


def refusal(reason: str, message: str, now_s: float) -> Json:
    """The status of a pod that the node does not admit."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": time_text(now_s),
    }


def _state(life: Life, container: HollowContainer) -> Json:
    match life.stage:
        case "starting":
            return {"waiting": {"reason": CREATING}}
        case "running":
            return {"running": {"startedAt": time_text(life.since_s)}}
        case "waiting":
            return {"waiting": {"reason": BACKING_OFF}}
    return {"terminated": _terminated(life.last, container)} if life.last is not None else {}


def _terminated(last: Exit, container: HollowContainer) -> Json:
    times: Json = {"finishedAt": time_text(last.finished_s)}
    if last.started_s is not None:
        times["startedAt"] = time_text(last.started_s)
    if last.log and last.code and container.says_why:
        times["message"] = last.log
    return {"exitCode": last.code, "reason": last.reason, **times}


def _conditions(life: Life, ready: bool) -> list[Json]:
    done = life.phase == "Succeeded"
    has_network = life.stage in ("running", "waiting")
    why = {} if ready else {"reason": _WHY_NOT_READY.get(life.phase, "ContainersNotReady")}
    return [
        _condition("PodReadyToStartContainers", has_network, _moment_s(life)),
        _condition(
            "Initialized", True, life.born_s, **({"reason": "PodCompleted"} if done else {})
        ),
        _condition("Ready", ready, _moment_s(life), **why),
        _condition("ContainersReady", ready, _moment_s(life), **why),
    ]


def _condition(name: str, holds: bool, since_s: float, **more: str) -> Json:
    status = "True" if holds else "False"
    return {"type": name, "status": status, "lastTransitionTime": time_text(since_s), **more}


def _moment_s(life: Life) -> float:
    """When its latest change was."""
    if life.stage in ("waiting", "ended") and life.last is not None:
        return life.last.finished_s
    return life.since_s
