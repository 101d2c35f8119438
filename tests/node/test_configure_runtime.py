"""`weft agent --configure-runtime` on a real containerd that starts containers without the agent.

Who starts containerd again is a thread here, as systemd is elsewhere.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_process import Agent, agent
from containerd import Unit
from kube_api import Object, Objects
from played_gpus import PlayedGpus
from real_node import RealNode

from weft.model.agent_offer import AgentOffer, decode_offer
from weft.model.annotations import AGENT
from weft.node.containerd.drop_in import NAME

_CLEANS_S = 120


@pytest.fixture
def unit(node: RealNode, tmp_path: Path) -> Iterator[Unit]:
    """containerd with a folder of drop-ins, and its validator off."""
    folder = tmp_path / "containerd" / "conf.d"
    folder.mkdir(parents=True)
    node.containerd.kill()
    node.containerd.configure(validator=False, imports=f"{folder}/*.toml")
    node.containerd.begin()
    try:
        with Unit(node.containerd) as unit:
            yield unit
    finally:
        node.restart_containerd()


@contextlib.contextmanager
def configuring(node: RealNode, gpus: PlayedGpus, folder: Path) -> Iterator[Agent]:
    process = Agent(node, gpus, "--configure-runtime", "--lock", folder / "run" / "agent.lock")
    try:
        process.begin()
        yield process
    finally:
        process.kill()


def offered(node: RealNode, that: Callable[[AgentOffer], object]) -> AgentOffer:
    """The offer of the node's agent, once it is so."""
    found: list[AgentOffer] = []

    def holds(nodes: Objects) -> bool:
        found[:] = [decode_offer(text) for text in map(_told, nodes) if text]
        return len(found) == 1 and bool(that(found[0]))

    node.api.wait_for(holds, "Node")
    return found[0]


def _told(node: Object) -> str:
    return str(node["metadata"].get("annotations", {}).get(AGENT, ""))


def clean(node: RealNode) -> str:
    """Run `weft agent --cleanup` on the node; its output."""
    command: list[str | Path] = [
        *(sys.executable, "-m", "weft.cli.main", "agent", "--cleanup", "--node-name", node.name),
        *("--cri-socket", node.containerd.socket, "--cdi-folder", node.folder / "cdi"),
        *("--kubeconfig", node.plane.kubeconfig_for("weft-agent", "system:masters")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_CLEANS_S)
    return done.stdout


def test_it_waits_afterwards_and_no_longer_once_that_is_put_back(
    node: RealNode, gpus: PlayedGpus, tmp_path: Path, unit: Unit
) -> None:
    drop_in = tmp_path / "containerd" / "conf.d" / NAME
    config = (node.containerd.folder / "config.toml").read_bytes()
    with configuring(node, gpus, tmp_path) as process:
        offer = offered(node, lambda offer: offer.fail_closed and offer.drop_in)
        assert offer.drop_in == str(drop_in)
        process.until("containerd now fails closed without the agent")
        assert process.metrics()["weft_agent_fail_closed"] == 1
    assert unit.started == 1
    with configuring(node, gpus, tmp_path):  # the next agent finds it so
        offered(node, lambda offer: offer.drop_in)
    assert unit.started == 1
    assert clean(node) == "cleaned 1 node\n"
    assert unit.started == 2
    assert not drop_in.exists()
    assert (node.containerd.folder / "config.toml").read_bytes() == config
    with agent(node, gpus):
        assert not offered(node, lambda offer: offer.open_because).fail_closed


def test_what_it_may_not_change_it_leaves_alone_and_says(
    node: RealNode, gpus: PlayedGpus, tmp_path: Path, unit: Unit
) -> None:
    """A drop-in of ours that was edited; a configuration that imports nothing."""
    drop_in = tmp_path / "containerd" / "conf.d" / NAME
    drop_in.write_text("version = 3\n")
    with configuring(node, gpus, tmp_path):
        offer = offered(node, lambda offer: NAME in offer.open_because)
        assert f"{drop_in} was edited since the agent wrote it" in offer.open_because
    assert drop_in.read_text() == "version = 3\n"
    drop_in.unlink()
    node.containerd.configure(validator=False)
    with configuring(node, gpus, tmp_path):
        offer = offered(node, lambda offer: "imports" in offer.open_because)
        assert "imports no folder of drop-ins: add imports = [" in offer.open_because
    assert unit.started == 0
    assert not drop_in.exists()


def test_what_another_file_undoes_is_not_even_tried(
    node: RealNode, gpus: PlayedGpus, tmp_path: Path, unit: Unit
) -> None:
    (tmp_path / "containerd" / "conf.d" / "zz.toml").write_text(
        'version = 3\n[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = false\n'
    )
    with configuring(node, gpus, tmp_path):
        offer = offered(node, lambda offer: "zz.toml" in offer.open_because)
        assert "is read last and disables NRI" in offer.open_because
    assert unit.started == 0
