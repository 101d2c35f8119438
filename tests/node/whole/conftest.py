"""The tests on a whole cluster, started once for all of them.

`make test-node` runs them by themselves, for there is one node at a time.
"""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import images
import pytest
import weft_image
from original_manifests import EXAMPLES
from whole_cluster import WholeCluster

import weft

FIRST = "test_two_commands.py"
IMAGE = "registry.example/weft-gpu"
_running = pytest.StashKey[WholeCluster]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the test that wants a cluster into which nothing was ever installed."""
    items.sort(key=lambda item: item.path.name != FIRST)


@pytest.fixture(scope="session")
def cluster(
    tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[WholeCluster]:
    """The cluster. Nothing of Weft is in it yet; its images and all examples' are on the node."""
    sys.stderr.write("making Weft's image\n")
    archive = weft_image.make(
        tmp_path_factory.mktemp("image") / "weft.tar", f"{IMAGE}:{weft.__version__}"
    )
    names = images.names_in(path.read_text() for path in EXAMPLES.rglob("*.yaml"))
    whole = WholeCluster(tools, tmp_path_factory.mktemp("whole"), names)
    pytestconfig.stash[_running] = whole
    with whole:
        whole.previous, what = weft_image.previous_sources(tmp_path_factory.mktemp("previous"))
        sys.stderr.write(f"the version before, for upgrades, is {what}\n")
        weft_image.add_previous(archive, whole.previous, f"{IMAGE}:previous", whole.gpus.path)
        whole.node.containerd.ctr("images", "import", archive, timeout_s=180)
        archive.unlink()
        yield whole


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.config.stash.get(_running, None)
    if report.failed and cluster is not None and hasattr(cluster, "node"):
        report.sections.append(("logs of the cluster", cluster.logs()))
    return report
