"""The hollow kubelet on the real API server: whole lives of pods, without a node."""

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import ALONE, CARD_MIB, CARDS, GIB, all_bound, nodes, pod, weft

from fakes.hollow_kubelet import HollowKubelet, HollowOptions
from weft.dialects.inventory import inventory
from weft.dialects.registry import read_placement
from weft.kube.client import ApiClient
from weft.kube.clock import Clock
from weft.kube.config import load
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import Node

T = TypeVar("T")

LIFE = ["Pending", "Running", "Succeeded"]


class Hollow:
    """A hollow kubelet in a thread of its own."""

    def __init__(
        self,
        kubeconfig: Path,
        ready: threading.Event,
        options: HollowOptions,
        clock: Clock | None = None,
    ) -> None:
        self.kubelet: HollowKubelet | None = None
        self._kubeconfig, self._ready, self._options = kubeconfig, ready, options
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._stop = asyncio.Event()

    def ask(self, question: Callable[[HollowKubelet], T]) -> T:
        """Asks it this where it runs."""

        async def answer() -> T:
            assert self.kubelet is not None
            return question(self.kubelet)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(10)

    def run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._main())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _main(self) -> None:
        async with ApiClient(load(paths=[self._kubeconfig]), clock=self._clock) as client:
            self.kubelet = HollowKubelet(client, self._options)
            async with self.kubelet.running():
                self._ready.set()
                await self._stop.wait()
        async with asyncio.timeout(
            10
        ):  # TLS takes its leave; then only the loop's own pipe is left
            while len(self._selector.get_map()) > 1:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)


EVERY_NODE = HollowOptions(nodes="", settings=GIB)


@contextlib.contextmanager
def hollow(
    plane: ControlPlane, options: HollowOptions = EVERY_NODE, clock: Clock | None = None
) -> Iterator[Hollow]:
    ready = threading.Event()
    one = Hollow(plane.kubeconfig_for("hollow", "system:masters"), ready, options, clock)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        assert ready.wait(20), "the hollow kubelet did not get ready"
        yield one
    finally:
        one.stop()
        thread.join(20)


def bound_by_hand(
    plane: ControlPlane, namespace: str, name: str, gpu: int, **profile: object
) -> Object:
    """A pod with 500 MiB of a card of node-0."""
    raw = pod(name, "nobody", {"elasticgpu.io/gpu-memory": 500}, annotations=marks(profile))
    raw["spec"]["restartPolicy"] = "Never"
    made = plane.api.create(raw, namespace)
    found = {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-main": str(gpu)}
    plane.api.bind(made, "node-0", found)
    return made


def marks(profile: dict[str, Any]) -> dict[str, str]:
    return {f"weft.dev/hollow-{k.replace('_', '-')}": str(v) for k, v in profile.items()}


def in_phase(phase: str, *names: str) -> Callable[[Objects], bool]:
    def said(pods: Objects) -> bool:
        return set(names) <= {
            one["metadata"]["name"] for one in pods if one["status"].get("phase") == phase
        }

    return said


def now(plane: ControlPlane, namespace: str) -> str:
    """The version from which `history` tells."""
    found = plane.api.request("GET", plane.api.path("Pod", namespace))
    version: str = found["metadata"]["resourceVersion"]
    return version


def history(plane: ControlPlane, namespace: str, since: str) -> Iterator[tuple[str, Object]]:
    """Every change of a pod after that version, as the API server tells it."""
    for event in plane.api.watch("Pod", namespace, since=since, timeout_s=1):
        yield event.type, event.object


def phases(plane: ControlPlane, namespace: str, since: str) -> dict[str, list[str]]:
    seen: dict[str, list[str]] = {}
    for kind, raw in history(plane, namespace, since):
        told = seen.setdefault(raw["metadata"]["name"], [])
        phase = raw["status"]["phase"]
        if kind != "DELETED" and told[-1:] != [phase]:
            told.append(phase)
    return seen


def terminated(plane: ControlPlane, namespace: str, name: str) -> Object:
    status = plane.api.get("Pod", name, namespace)["status"]
    found: Object = status["containerStatuses"][0]["state"]["terminated"]
    return found


def test_pods_bound_by_hand_run_to_their_end(control_plane: ControlPlane, namespace: str) -> None:
    nodes(control_plane, 1)
    since = now(control_plane, namespace)
    names = [f"p-{index}" for index in range(20)]
    with hollow(control_plane) as kubelet:
        for index, name in enumerate(names):
            bound_by_hand(control_plane, namespace, name, index % 2, start_up_s=index % 3, run_s=1)
        control_plane.api.wait_for(in_phase("Succeeded", *names), "Pod", namespace, timeout_s=30)
        assert {use.used_mib for use in kubelet.ask(lambda one: one.gpu_use())} == {0}
    assert phases(control_plane, namespace, since) == dict.fromkeys(names, LIFE)
    assert terminated(control_plane, namespace, "p-3")["reason"] == "Completed"


def test_who_runs_out_of_memory_and_a_deletion(control_plane: ControlPlane, namespace: str) -> None:
    nodes(control_plane, 1)
    since = now(control_plane, namespace)
    with hollow(control_plane):
        bound_by_hand(control_plane, namespace, "quiet", 0)
        control_plane.api.wait_for(in_phase("Running", "quiet"), "Pod", namespace)
        greedy = f"0:100, 1:{CARD_MIB}"
        bound_by_hand(control_plane, namespace, "greedy", 0, memory_mib=greedy)
        bound_by_hand(control_plane, namespace, "elsewhere", 1, memory_mib=greedy)
        control_plane.api.wait_for(in_phase("Failed", "greedy"), "Pod", namespace)
        ended = terminated(control_plane, namespace, "greedy")
        assert (ended["reason"], ended["exitCode"]) == ("Error", 1)
        path = f"{control_plane.api.path('Pod', namespace)}/quiet"
        going = control_plane.api.request("DELETE", path)
        assert going["metadata"]["deletionGracePeriodSeconds"] == 30
        control_plane.api.wait_for(
            lambda pods: {p["metadata"]["name"] for p in pods} == {"greedy", "elsewhere"},
            "Pod",
            namespace,
        )
    assert phases(control_plane, namespace, since) == {
        "quiet": ["Pending", "Running", "Failed"],
        "greedy": ["Pending", "Running", "Failed"],
        "elsewhere": ["Pending", "Running"],
    }


def test_a_restart_in_the_middle_changes_nothing(
    control_plane: ControlPlane, namespace: str
) -> None:
    nodes(control_plane, 1)
    since = now(control_plane, namespace)
    with hollow(control_plane):
        bound_by_hand(control_plane, namespace, "short", 0, run_s=2)
        bound_by_hand(control_plane, namespace, "long", 1, run_s=6)
        control_plane.api.wait_for(in_phase("Running", "short", "long"), "Pod", namespace)
    bound_by_hand(control_plane, namespace, "late", 0, run_s=1)
    with hollow(control_plane) as kubelet:
        control_plane.api.wait_for(in_phase("Succeeded", "short", "late"), "Pod", namespace)
        assert {use.used_mib for use in kubelet.ask(lambda one: one.gpu_use())} == {0, 500}
        control_plane.api.wait_for(in_phase("Succeeded", "long"), "Pod", namespace)
    assert phases(control_plane, namespace, since) == dict.fromkeys(("short", "long", "late"), LIFE)


def test_three_times_the_pods_that_fit_all_run_and_no_card_is_ever_over(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The whole loop, but for the machine: 60 pods, room for 20, `weft scheduler` as users run it.

    What the cards hold is worked out from the API server's history, by event.
    """
    nodes(control_plane, 5)
    since = now(control_plane, namespace)
    names = [f"p-{index}" for index in range(60)]
    short = marks({"run_s": 2, "start_up_s": 0.5})
    burst = [pod(name, "weft", {"aliyun.com/gpu-mem": 8}, annotations=short) for name in names]
    for one in burst:
        one["spec"]["restartPolicy"] = "Never"
    with hollow(control_plane) as kubelet, weft(control_plane, tmp_path, ALONE):
        control_plane.create_pods(namespace, burst)
        control_plane.api.wait_for(all_bound(60), "Pod", namespace, timeout_s=60)
        control_plane.api.wait_for(in_phase("Succeeded", *names), "Pod", namespace, timeout_s=30)
        assert {use.used_mib for use in kubelet.ask(lambda one: one.gpu_use())} == {0}
    fullest, most = check_never_over(control_plane, namespace, since)
    assert fullest == CARD_MIB
    assert 10 < most <= 20
    assert phases(control_plane, namespace, since) == dict.fromkeys(names, LIFE)


def check_never_over(plane: ControlPlane, namespace: str, since: str) -> tuple[int, int]:
    """Goes through the history; the most MiB that a card, and the most pods that all held."""
    found = [inventory(msgspec.convert(raw, KubeNode))[0] for raw in plane.api.list("Node")]
    by_name: dict[str, Node] = {node.name: node for node in found}
    held: dict[str, tuple[str, int, int]] = {}
    fullest = most = 0
    for kind, raw in history(plane, namespace, since):
        one = msgspec.convert(raw, Pod, strict=False)
        held.pop(one.metadata.uid, None)
        node = by_name.get(one.spec.node_name)
        if node is not None and not one.ended and kind != "DELETED":
            placement = read_placement(one, node, GIB)
            assert placement is not None, one.metadata.name
            (share,) = placement.shares
            assert share.gpu < CARDS
            held[one.metadata.uid] = (node.name, share.gpu, share.memory_mib)
        sums: dict[tuple[str, int], int] = {}
        for name, gpu, mib in held.values():
            sums[name, gpu] = sums.get((name, gpu), 0) + mib
        fullest, most = max(fullest, *sums.values(), 0), max(most, len(held))
        assert fullest <= CARD_MIB
    return fullest, most
