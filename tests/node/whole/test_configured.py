"""The chart's agents have containerd wait for them, and uninstalling puts that back."""

from pathlib import Path

import pytest
import yaml
from containerd import Unit
from kube_api import Objects
from test_clean import SYSTEM, WHERE, all_ready
from whole_cluster import WholeCluster, as_users_install

from weft.model.agent_offer import decode_offer
from weft.model.annotations import AGENT
from weft.node.containerd.drop_in import NAME

_HELM_S = 280
_TRIES_S = 180  # two trials, each of a sandbox: on a busy machine they take long


@pytest.fixture
def unit(cluster: WholeCluster) -> Unit:
    """containerd with its validator off, and a folder of drop-ins."""
    containerd = cluster.node.containerd
    (containerd.folder / "conf.d").mkdir()
    containerd.kill()
    containerd.configure(validator=False, imports="conf.d/*.toml")
    containerd.begin()
    return Unit(containerd)


def test_the_charts_agents_configure_containerd_and_uninstalling_puts_that_back(
    cluster: WholeCluster, tmp_path: Path, unit: Unit
) -> None:
    folder = cluster.node.containerd.folder / "conf.d"
    values = cluster.values(tmp_path)
    chosen = yaml.safe_load(values.read_text())
    # Where the socket is too, which is mounted read-only; elsewhere one is in /run, one in /etc.
    chosen["agent"] |= {"configureRuntime": True, "runtimeFolder": str(folder)}
    values.write_text(yaml.safe_dump(chosen))
    try:
        with unit:
            cluster.shell(f"{as_users_install()} --values {values}")
            all_ready(cluster)
            cluster.api.wait_for(
                lambda nodes: waits_by(nodes, folder / NAME), "Node", timeout_s=_TRIES_S
            )
            assert unit.started == 1
            assert "99-weft.toml" in [file.name for file in folder.iterdir()]
            cluster.shell(f"helm uninstall weft {WHERE} --timeout {_HELM_S}s")
            cluster.api.wait_for(lambda pods: not pods, "Pod", SYSTEM, timeout_s=120)
            assert unit.started == 2
        assert list(folder.iterdir()) == []
        assert not any(AGENT in each for each in marks(cluster.api.list("Node")))
    finally:
        cluster.node.restart_containerd()


def waits_by(nodes: Objects, drop_in: Path) -> bool:
    """Tells whether the node says that its runtime waits, by this file of the agent's."""
    offers = [decode_offer(one[AGENT]) for one in marks(nodes) if AGENT in one]
    return [(one.fail_closed, one.drop_in) for one in offers] == [(True, str(drop_in))]


def marks(nodes: Objects) -> list[dict[str, str]]:
    return [one["metadata"].get("annotations", {}) for one in nodes]
