"""The tests on a real node: a control plane, containerd and a kubelet for all of them."""

import os
import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import images
import pytest
import weft_image
from binaries import CONTROL_PLANE
from binaries import find_or_build as find_or_build_cluster
from certificates import available
from control_plane import ControlPlane
from go_tools import NoBinariesError, Say
from node_tools import find_or_build, why_not
from original_manifests import EVERY_MANIFEST
from played_gpus import PlayedGpus
from real_node import API_SERVER_OPTIONS, RealNode

HERE = Path(__file__).resolve().parent
FIRST = "test_machine_state.py"  # it starts nodes of its own, while the session has none
_running = pytest.StashKey[RealNode]()
_why_not = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "node: runs on a real kubelet and containerd; run by `make test-node`"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test of this folder is marked, and left out where nobody asked for such tests."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker("node")
    paths = [Path(word.partition("::")[0]).resolve() for word in config.args]
    if "node" not in config.option.markexpr and not any(p.is_relative_to(HERE) for p in paths):
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
    items.sort(key=lambda item: item.path.name != FIRST)


@pytest.fixture(scope="session")
def tools(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Every program that a node and its control plane need. Without, the test is skipped."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"{text}\n")

    found, lacking = _tools(say)
    if lacking and os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the node tests: {lacking}", pytrace=False)
    if lacking:
        pytestconfig.stash[_why_not] = lacking
        pytest.skip(lacking)
    return found


def _tools(say: Say) -> tuple[dict[str, Path], str]:
    """Where they are; and why there are none, if so."""
    if lacking := why_not():
        return {}, lacking
    if not available():
        return {}, "no openssl command, which makes the certificates: install it"
    try:
        return find_or_build_cluster(say, CONTROL_PLANE) | find_or_build(say), ""
    except NoBinariesError as error:
        return {}, str(error)


@pytest.fixture(scope="session")
def control_plane(
    tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, running, with an authorizer for nodes."""
    folder = tmp_path_factory.mktemp("control-plane")
    with ControlPlane(tools, folder, API_SERVER_OPTIONS) as plane:
        yield plane


@pytest.fixture(scope="session")
def node(
    control_plane: ControlPlane, tools: dict[str, Path], pytestconfig: pytest.Config
) -> Iterator[RealNode]:
    """The real node. After all tests the machine is as it was before, or this fails."""
    machine = RealNode(control_plane, tools, images.names_in(EVERY_MANIFEST))
    pytestconfig.stash[_running] = machine
    with machine:
        yield machine
    assert machine.left_behind == []


@pytest.fixture(scope="session")
def debian_image(node: RealNode, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name in containerd of Weft's image of Debian's packages."""
    file, tag = tmp_path_factory.mktemp("image") / "weft.tar", "weft.test/weft-gpu:debian"
    weft_image.make(file, tag)
    assert file.stat().st_size < weft_image.MOST_MB * 10**6
    node.containerd.ctr("images", "import", file, timeout_s=180)
    file.unlink()
    return tag


@pytest.fixture(scope="session")
def gpus(node: RealNode) -> PlayedGpus:
    """Eight GPUs for the node's agents."""
    return PlayedGpus(node.folder)


@pytest.fixture(autouse=True)
def _nothing_of_earlier_agents(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test finds what the agents of another have written on the node."""
    yield
    if "node" in request.fixturenames:
        request.getfixturevalue("node").forget_agents()


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """An empty namespace. Its pods are deleted after the test and have ended then."""
    yield from _a_namespace(node)


@pytest.fixture
def other_namespace(node: RealNode) -> Iterator[str]:
    """One more."""
    yield from _a_namespace(node)


def _a_namespace(node: RealNode) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    node.plane.create_namespace(name)
    yield name
    node.clear(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    node = item.config.stash.get(_running, None)
    if report.failed and node is not None:
        report.sections.append(("logs of the node", node.logs()))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lacking = config.stash.get(_why_not, None)
    if lacking:
        terminalreporter.section("node tests SKIPPED")
        terminalreporter.write_line(lacking)
