"""The tests on a real control plane: one for all of them, and a namespace for each."""

import os
import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from binaries import find_or_build
from certificates import available
from control_plane import ControlPlane
from go_tools import NoBinariesError, Say

HERE = Path(__file__).resolve().parent
_running = pytest.StashKey[ControlPlane]()
_why_not = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster: runs on a real control plane; run by `make test-cluster`"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test of this folder is marked, and left out where nobody asked for such tests.

    Asked for is what `-m` or a path on the command line names. So neither `pytest` nor `make test`
    starts servers, or a build of minutes.
    """
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker("cluster")
    paths = [Path(word.partition("::")[0]).resolve() for word in config.args]
    if "cluster" not in config.option.markexpr and not any(p.is_relative_to(HERE) for p in paths):
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def control_plane(
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, running. Their logs are shown with a test that fails."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"{text}\n")

    _compile_once(tmp_path_factory.mktemp("bytecode"), request)
    binaries, why_not = _binaries(say)
    if why_not and os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the cluster tests: {why_not}", pytrace=False)
    if why_not:
        pytestconfig.stash[_why_not] = why_not
        pytest.skip(why_not)
    with ControlPlane(binaries, tmp_path_factory.mktemp("control-plane")) as plane:
        pytestconfig.stash[_running] = plane
        yield plane


def _compile_once(folder: Path, request: pytest.FixtureRequest) -> None:
    """Every `weft` that a test starts finds the bytecode of the one before it, also where none may
    be written beside the sources: without it each start takes a second longer."""
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    patch.setenv("PYTHONPYCACHEPREFIX", str(folder))
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def _binaries(say: Say) -> tuple[dict[str, Path], str]:
    """Where they are; and why there are none, if so."""
    if not available():
        return {}, "no openssl command, which makes the certificates: install it"
    try:
        return find_or_build(say), ""
    except NoBinariesError as error:
        return {}, str(error)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """An empty namespace in a cluster without nodes and pods."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.create_namespace(name)
    yield name
    control_plane.clear(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    plane = item.config.stash.get(_running, None)
    if report.failed and plane is not None:
        report.sections.append(("logs of the control plane", plane.logs()))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    why_not = config.stash.get(_why_not, None)
    if why_not:
        terminalreporter.section("cluster tests SKIPPED")
        terminalreporter.write_line(why_not)
