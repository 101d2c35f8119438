"""The tests on a node with an NVIDIA GPU: run by `make test-gpu`, and by nothing else.

The control plane, containerd and kubelet are those of `tests/node`; GPU, driver, CUDA and MPS are
this machine's.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import binaries
import node_tools
import pytest
from control_plane import ControlPlane
from real_node import API_SERVER_OPTIONS, RealNode

HERE = Path(__file__).resolve().parent
NEEDED = (binaries.ETCD, binaries.API_SERVER, binaries.KUBELET)
"""No kube-scheduler: Weft's places the pods."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nobody runs these who did not name this folder."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    named = [Path(word.partition("::")[0]).resolve() for word in config.args]
    if not any(path.is_relative_to(HERE) for path in named):
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def tools() -> dict[str, Path]:
    """Every program that such a node needs. Without one of them, or a GPU, the tests fail: they
    were asked for."""
    if shutil.which("nvidia-smi") is None:
        pytest.fail("no nvidia-smi: `make test-gpu` needs an NVIDIA GPU", pytrace=False)
    if lacking := node_tools.why_not():
        pytest.fail(lacking, pytrace=False)
    found = binaries.find(NEEDED) | node_tools.find()
    missing = {*NEEDED, *node_tools.BUILT} - found.keys()
    if missing:
        pytest.fail(f"no {', '.join(sorted(missing))}: run `make node-tools`", pytrace=False)
    return found


@pytest.fixture(scope="session")
def node(tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The node, on a control plane of its own."""
    folder = tmp_path_factory.mktemp("control-plane")
    with (
        ControlPlane(tools, folder, API_SERVER_OPTIONS) as plane,
        RealNode(plane, tools) as machine,
    ):
        yield machine
