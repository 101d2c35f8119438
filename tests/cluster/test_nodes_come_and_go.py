"""`weft scheduler` as it ships, while nodes join, leave, gain and lose GPUs, on the real API.

What is worked out beside the decisions (prices, scores ahead, what usually comes) is due while that
goes on. The process lives, every pod gets its place, and no card is over.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from control_plane import ControlPlane
from kube_api import Objects
from ways import FIRST, POLICIES, SHIPPED_BY
from weft_process import (
    ALONE,
    GFD,
    Weft,
    all_bound,
    audited,
    bound,
    nodes,
    pod,
    resources,
    sigkill,
    starting,
    weft,
)

from weft.cluster.config.form import Configuration, PolicySettings, ProfileSettings

MEMORY = "elasticgpu.io/gpu-memory"
STEPS = 60


def deciding(name: str, **options: object) -> Configuration:
    """A configuration in which this policy decides for the profile `weft`."""
    return Configuration(profiles=(ProfileSettings("weft", (PolicySettings(name, 1, options),)),))


EVERY_POLICY = Configuration(
    profiles=tuple(
        ProfileSettings("weft" if name == "auto" else name, (PolicySettings(name),))
        for name in POLICIES
    )
)
CONFIGURATIONS = {
    **SHIPPED_BY,
    "auto": deciding("auto"),
    "prices every second": deciding("least-stranding", pods_per_prices=3, prices_age_s=1),
    "every policy": EVERY_POLICY,
}
"""Pods ask for all the profiles of each; config defaults are without a file. What the chart ships
alike is not run again."""
PLAYED = [
    name
    for number, (name, config) in enumerate(CONFIGURATIONS.items())
    if config not in list(CONFIGURATIONS.values())[:number]
]
FEW = [name for name in PLAYED if name != "every policy"]


def options(tmp_path: Path, configuration: str) -> tuple[str, ...]:
    """Options of the command: none, or a file of that configuration."""
    config = CONFIGURATIONS[configuration]
    if config == Configuration():
        return ()
    path = tmp_path / "weft.yaml"
    path.write_bytes(msgspec.yaml.encode(config))
    return "--config", str(path)


def lives(process: Weft) -> None:
    """Asserts that it runs, and that nothing in it broke off."""
    assert process.running, process.said
    assert "Traceback" not in process.said


def sized(name: str, mib: int, scheduler: str = "weft") -> dict[str, object]:
    return pod(name, scheduler, {MEMORY: mib})


def set_gpus(plane: ControlPlane, name: str, cards: int) -> None:
    """The node tells of so many cards from now on."""
    plane.api.patch("Node", name, {"metadata": {"labels": {"nvidia.com/gpu.count": str(cards)}}})
    has = {"capacity": resources(cards), "allocatable": resources(cards)}
    plane.api.patch("Node", name, {"status": has}, part="status")


def joins(plane: ControlPlane) -> None:
    plane.create_fake_node("node-new", resources(), labels=GFD)


def leaves(plane: ControlPlane) -> None:
    plane.api.delete("Node", "node-2")


def gains(plane: ControlPlane) -> None:
    set_gpus(plane, "node-2", 4)


def loses(plane: ControlPlane) -> None:
    set_gpus(plane, "node-2", 1)


@pytest.mark.parametrize("policy", FEW)
@pytest.mark.parametrize("change", [joins, leaves, gains, loses])
def test_prices_that_are_due_after_a_node_changed(
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    change: Callable[[ControlPlane], None],
    policy: str,
) -> None:
    """One pod is bound, a node changes, and 205 pods of another size make new prices due."""
    nodes(control_plane, 3)
    with weft(control_plane, tmp_path, ALONE, *options(tmp_path, policy)) as process:
        control_plane.create_pods(namespace, [sized("first", 500)])
        control_plane.api.wait_for(all_bound(1), "Pod", namespace, timeout_s=15)
        change(control_plane)
        control_plane.create_pods(namespace, [sized(f"p-{i}", 64) for i in range(205)])
        control_plane.api.wait_for(all_bound(206), "Pod", namespace, timeout_s=40)
        for number in range(205):
            control_plane.api.delete("Pod", f"p-{number}", namespace)
        control_plane.create_pods(namespace, [sized("like-the-first", 500)])
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=20)
        lives(process)
        audited(control_plane, namespace)


class Chaos:
    """Everything that happens to a cluster, one thing after the other, by chance."""

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        start: Callable[[], Weft],
        seed: int,
        names: Sequence[str],
    ) -> None:
        self.plane, self.namespace, self._start, self._names = plane, namespace, start, names
        self.random = random.Random(seed)
        self.process = start()
        self.nodes = [f"node-{number}" for number in range(3)]
        self.kills = self._made = 0

    def step(self) -> None:
        often = (self.add, self.add, self.add, self.delete, self.node_changes, self.node_changes)
        self.random.choice((*often, self.kill, self.pause))()
        assert self.process.running, self.process.said

    def add(self) -> None:
        first, self._made = self._made, self._made + self.random.randint(1, 20)
        mib = self.random.choice((64, 200, 500, 1000, 3000, 9000))
        some = range(first, self._made)
        pods = [sized(f"p-{number}", mib, self.random.choice(self._names)) for number in some]
        self.plane.create_pods(self.namespace, pods)

    def delete(self) -> None:
        names = [one["metadata"]["name"] for one in self.pods()]
        for name in self.random.sample(names, len(names) // 4):
            self.plane.api.delete("Pod", name, self.namespace)

    def node_changes(self) -> None:
        """And pods go right after: what is due by then is done before the next one comes."""
        self.random.choice((self.node_joins, self.node_leaves, self.gpus_change))()
        self.delete()

    def node_joins(self) -> None:
        name = f"node-{self._made}-{len(self.nodes)}"
        if len(self.nodes) < 6 and name not in self.nodes:
            self.nodes.append(name)
            cards = self.random.choice((1, 2, 4))
            labels = {**GFD, "nvidia.com/gpu.count": str(cards)}
            self.plane.create_fake_node(name, resources(cards), labels=labels)

    def node_leaves(self) -> None:
        if len(self.nodes) > 1:
            name = self.nodes.pop(self.random.randrange(len(self.nodes)))
            self.plane.api.delete("Node", name)

    def gpus_change(self) -> None:
        set_gpus(self.plane, self.random.choice(self.nodes), self.random.choice((1, 2, 4)))

    def kill(self) -> None:
        sigkill(self.process)
        self.kills += 1
        self.process = self._start()

    def pause(self) -> None:
        self.process.pause()
        self.add()
        self.delete()
        self.process.resume()

    def pods(self) -> Objects:
        return self.plane.api.list("Pod", self.namespace)

    def collect(self) -> None:
        """Pods of nodes that left go, as the cluster's garbage collection has them go."""
        for one in self.pods():
            if one["spec"].get("nodeName", self.nodes[0]) not in self.nodes:
                self.plane.api.delete("Pod", one["metadata"]["name"], self.namespace)


@pytest.mark.parametrize("policy", PLAYED)
def test_chaos(control_plane: ControlPlane, namespace: str, tmp_path: Path, policy: str) -> None:
    nodes(control_plane, 3)

    def start() -> Weft:
        process = starting(control_plane, tmp_path, ALONE, *options(tmp_path, policy))
        process.until(r"\bready: \d+ nodes")
        return process

    names = [profile.scheduler_name for profile in CONFIGURATIONS[policy].profiles]
    chaos = Chaos(control_plane, namespace, start, FIRST, names)
    try:
        for _ in range(STEPS):
            chaos.step()
        chaos.collect()
        for one in chaos.pods():
            if not bound([one]):
                control_plane.api.delete("Pod", one["metadata"]["name"], namespace)
        control_plane.create_fake_node("last", resources(), labels=GFD)
        count = len(chaos.pods())
        control_plane.create_pods(namespace, [sized("last", 9000)])
        control_plane.api.wait_for(all_bound(count + 1), "Pod", namespace, timeout_s=40)
        assert not any("deletionTimestamp" in one["metadata"] for one in chaos.pods()), "evicted"
        assert chaos.kills
        lives(chaos.process)
    finally:
        chaos.process.kill()
