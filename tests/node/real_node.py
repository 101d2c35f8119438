"""A real node on this machine: containerd, kubelet and what runs in their pods.

There is one at a time on a machine, whoever starts it: the second waits. What it changes of the
machine is put back when it stops; what a killed one has left, when the next starts.
"""

import contextlib
import fcntl
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import images
from containerd import Containerd
from control_plane import ControlPlane
from inside import Inside, read_log
from kube_api import ApiError, Object, Objects
from kubelet import DEVICE_PLUGINS, Kubelet
from machine_state import MachineState, put_back, why_not_here
from played_gpus import PlayedGpus
from processes import StartStop

NAME = "real-node"
NRI_SOCKET, CDI_FOLDER = Path("/run/nri/nri.sock"), Path("/run/cdi")
# As real clusters have it: a kubelet may do what its node needs, and nothing to other nodes.
API_SERVER_OPTIONS = ("--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction")
_NOTES = Path("/run/weft-node-tests")
_TELLS_S = 60.0
_POLL_S = 0.02
_RUNS_S = 120.0
_ENDS_S = 120.0


class RealNode(StartStop):
    """The node `real-node`. Pods bound to it run here; `inside` says what a container sees.

    `left_behind` is what of the machine is not as it was, once this has stopped. One that is
    `as_deployed`, at that address, has NRI's socket and CDI files where manifests look for them,
    and a runtime `nvidia` whose containers have all GPUs' device nodes.
    """

    def __init__(
        self,
        plane: ControlPlane,
        tools: dict[str, Path],
        more_images: Sequence[str] = (),
        *,
        as_deployed: str = "",
    ) -> None:
        self.plane, self.api, self.name = plane, plane.api, NAME
        self._as_deployed = as_deployed
        self._tools, self._more_images = tools, more_images
        self.left_behind: list[str] = []
        self._left = contextlib.ExitStack()

    # --- its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything up; its node is Ready."""
        self._left.enter_context(alone_here())
        put_back_what_is_noted()
        if reason := why_not_here():
            raise RuntimeError(reason)
        self.before = MachineState.now()
        self._left.callback(self._look_back)
        # Sockets' paths may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="weft-node-"))
        self._note()
        self._left.callback(put_back_what_is_noted)
        DEVICE_PLUGINS.mkdir(parents=True, exist_ok=True)
        self.containerd = self._containerd()
        self._left.callback(self.containerd.kill)
        self.containerd.begin()
        self._import_images()
        self.kubelet = Kubelet(
            *(self.plane, self._tools, self.containerd, self.folder / "kubelet", self.name),
            *((self._as_deployed,) if self._as_deployed else ()),
        )
        self._left.callback(self.kubelet.kill)
        self.kubelet.begin()

    def _containerd(self) -> Containerd:
        folder = self.folder / "containerd"
        if not self._as_deployed:
            return Containerd(self._tools, folder)
        # As systemd has /run: the agent's pod looks into it, and hears there of what is unmounted.
        folder.mkdir()
        for how in (("--bind", folder), ("--make-shared",)):
            subprocess.run(["mount", *how, folder], check=True, capture_output=True)
        self.gpus = PlayedGpus(self.folder)
        devices = sorted(self.gpus.devices_of(range(self.gpus.count)))
        return Containerd(self._tools, folder, NRI_SOCKET, CDI_FOLDER, devices)

    def stop(self) -> None:
        """End all of it and put the machine back."""
        self._left.close()

    def _look_back(self) -> None:
        self.left_behind = self.before.differences(MachineState.now())

    def _note(self) -> None:
        text = json.dumps({"folder": str(self.folder), "before": self.before.dump()})
        (_NOTES / "running.json").write_text(text)

    def _import_images(self) -> None:
        archive = self.folder / "images.tar"
        images.write_archive(archive, images.find_busybox(), self._more_images)
        self.containerd.ctr("images", "import", archive)

    def restart_containerd(
        self, *, nri: bool = True, validator: bool = True, cdi: bool = True
    ) -> None:
        """Containers go on while it is away. The others say whether it has them then."""
        self.containerd.kill()
        self.containerd.configure(nri=nri, validator=validator, cdi=cdi)
        self.containerd.begin()

    def restart_kubelet(self) -> None:
        """Its containers go on while it is away."""
        with self.without_kubelet():
            pass

    @contextlib.contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """No pod starts meanwhile: what is bound meanwhile starts afterwards."""
        self.kubelet.stop()
        try:
            yield
        finally:
            self.kubelet.begin()

    def logs(self) -> str:
        """The end of each log: containerd's, the kubelet's, and those of the node's agents."""
        folder = getattr(self, "folder", Path("/nowhere"))
        found = sorted([*folder.glob("*.log"), *folder.glob("*/*.log")])
        return "\n".join(f"--- {path}\n{last_lines(path)}" for path in found)

    def advertise(self, resources: Mapping[str, str | None]) -> None:
        """The node has so much of these extended resources (None: nothing of one)."""
        self.api.patch(
            "Node",
            self.name,
            {"status": {"capacity": dict(resources), "allocatable": dict(resources)}},
            part="status",
        )

    def forget_agents(self) -> None:
        """Take from the node object what agents wrote there, and all extended resources."""
        node = self.api.get("Node", self.name)
        written = {
            field: dict.fromkeys(n for n in node["metadata"].get(field, {}) if _is_agents(n))
            for field in ("annotations", "labels")
        }
        self.api.patch("Node", self.name, {"metadata": written})
        self.advertise(dict.fromkeys(name for name in node["status"]["capacity"] if "/" in name))

    # --- pods ------------------------------------------------------------------------------------

    def create(self, pods: Objects, namespace: str, *, bind: bool = True) -> Objects:
        """Create these pods as they can run here: their images are this node's.

        They are bound to this node, or with `bind=False` left to a scheduler.
        """
        made = [runnable(pod) for pod in pods]
        if bind:
            made = [{**pod, "spec": {**pod["spec"], "nodeName": self.name}} for pod in made]
        return self.plane.create_pods(namespace, made)

    def wait(
        self,
        wanted: Callable[[Objects], object],
        namespace: str,
        timeout_s: float = _RUNS_S,
    ) -> Objects:
        """All pods of the namespace as soon as `wanted` is true of them."""
        try:
            return self.api.wait_for(
                lambda pods: pods if wanted(pods) else [], "Pod", namespace, timeout_s=timeout_s
            )
        except TimeoutError as error:
            states = "\n".join(map(state_of, self.api.list("Pod", namespace)))
            raise TimeoutError(f"{error}\n{states}") from None

    def run(self, pods: Objects, namespace: str, timeout_s: float = _RUNS_S) -> Objects:
        """Create these pods on this node; they come back as soon as each runs or has ended."""
        names = {one["metadata"]["name"] for one in self.create(pods, namespace)}
        return self.wait(
            lambda found: names <= {p["metadata"]["name"] for p in found if has_begun(p)},
            namespace,
            timeout_s,
        )

    def inside(self, pod: Object, container: str, attempt: int | None = None) -> Inside:
        """The findings of a container, init containers too, about itself when it began.

        Its image must be one of `images` and its command begin with `/bin/tell`. `attempt` is the
        number of its restarts; without, the last there is.
        """
        deadline = time.monotonic() + _TELLS_S
        while True:
            try:
                return read_log(self._log(pod, container, attempt))
            except (ValueError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def says(self, pod: Object, container: str, attempt: int | None = None) -> str:
        """The output of a container."""
        lines = self._log(pod, container, attempt).read_text().splitlines()
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)

    def execute(self, pod: Object, container: str, *command: str) -> str:
        """The output of a command that is run inside a container; it must succeed."""
        found = self.containers(pod)[container]
        return self.containerd.ctr(
            "task", "exec", "--exec-id", secrets.token_hex(8), found, *command
        )

    def containers(self, pod: Object) -> dict[str, str]:
        """The runtime's ID of each container of the pod that has been started, by its name."""
        now = self.api.get("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
        fields = ("initContainerStatuses", "containerStatuses")
        found = [one for field in fields for one in now["status"].get(field, ())]
        return {
            one["name"]: one["containerID"].partition("://")[2]
            for one in found
            if one.get("containerID")
        }

    def _log(self, pod: Object, container: str, attempt: int | None) -> Path:
        meta = pod["metadata"]
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        folder = self.kubelet.logs / name / container
        if attempt is None:
            attempt = max(int(path.stem) for path in folder.glob("*.log"))
        return folder / f"{attempt}.log"

    def clear(self, namespace: str) -> None:
        """Delete all pods of the namespace, and it; what ran of them has ended."""
        self.api.request("DELETE", self.api.path("Pod", namespace), {"gracePeriodSeconds": 1})
        for pod in self.api.list("Pod", namespace):
            if not pod["spec"].get("nodeName"):
                with contextlib.suppress(ApiError):
                    self.api.delete("Pod", pod["metadata"]["name"], namespace)
        self.api.wait_for(lambda pods: not pods, "Pod", namespace, timeout_s=_ENDS_S)
        self.plane.remove_namespace(namespace)


def last_lines(path: Path, count: int = 30) -> str:
    """The end of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


def _is_agents(name: str) -> bool:
    return name.startswith(("weft.dev/", "ai.centaurus.io/"))


def runnable(pod: Object) -> Object:
    """The pod as it can run on this node: images are not pulled, and it ends soon when deleted.

    Init containers that say no command tell what they find and end; sidecars run on.
    """
    spec = {"terminationGracePeriodSeconds": 1, **pod["spec"]}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_runnable_container(one, field) for one in spec[field]]
    return {"kind": "Pod", **pod, "spec": spec}


def _runnable_container(container: Object, field: str) -> Object:
    made: Object = {"imagePullPolicy": "Never", "image": images.BUSYBOX, **container}
    if field == "initContainers" and made.get("restartPolicy") != "Always":
        made.setdefault("command", list(images.TELL_AND_END))
    return made


def has_begun(pod: Object) -> bool:
    """Tells whether every container of the pod runs, or the pod has ended."""
    status = pod.get("status", {})
    if status.get("phase") in {"Succeeded", "Failed"}:
        return True
    found = status.get("containerStatuses", ())
    return len(found) == len(pod["spec"]["containers"]) and all(
        "running" in one["state"] or "terminated" in one["state"] for one in found
    )


def state_of(pod: Object) -> str:
    """Where the pod stands, in a line: for people."""
    status, words = pod.get("status", {}), [pod["metadata"]["name"]]
    words += [str(status.get(key, "")) for key in ("phase", "reason", "message")]
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for kind, more in one["state"].items():
            words.append(
                f"[{one['name']} {kind} {more.get('reason', '')} {more.get('message', '')}]"
            )
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            words.append(condition.get("message", "not scheduled"))
    return " ".join(filter(None, words))


# --- one at a time, and nothing left -------------------------------------------------------------


class _Turn:
    """The machine's lock. One a process: a second of its own would wait for itself for ever."""

    def __init__(self) -> None:
        self._held, self._count = contextlib.ExitStack(), 0

    def begin(self) -> None:
        if not self._count:
            _NOTES.mkdir(exist_ok=True)
            lock = self._held.enter_context((_NOTES / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._count += 1

    def end(self) -> None:
        self._count -= 1
        if not self._count:
            self._held.close()


_turn = _Turn()


@contextlib.contextmanager
def alone_here() -> Iterator[None]:
    """Until the other node on this machine, if there is one, has stopped; whoever holds the machine
    already has it."""
    _turn.begin()
    try:
        yield
    finally:
        _turn.end()


def put_back_what_is_noted() -> None:
    """Undoes what a node has left whose process was killed; nothing where none has."""
    notes = _NOTES / "running.json"
    if not notes.exists():
        return
    found = json.loads(notes.read_text())
    put_back(MachineState.load(found["before"]), Path(found["folder"]))
    notes.unlink()
