"""The image of Debian's packages, and the Dockerfile's, in a real containerd: each runs as it is
deployed."""

import dockerfile_image
import pytest
import weft_image
from real_node import RealNode

import weft
from weft.cli.compat import PROGRAMS

AS_DEPLOYED = ("--read-only", "--cgroup", "")


@pytest.fixture(scope="module", params=["debian", "dockerfile"])
def image(
    request: pytest.FixtureRequest, node: RealNode, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Its name in containerd, once it is imported there."""
    if request.param == "debian":
        return str(request.getfixturevalue("debian_image"))
    folder = tmp_path_factory.mktemp("image")
    file, tag = folder / "weft.tar", "weft.test/weft-gpu:dockerfile"
    dockerfile_image.make(file, tag, folder)
    assert file.stat().st_size < weft_image.MOST_MB * 10**6
    node.containerd.ctr("images", "import", file, timeout_s=180)
    return tag


def run(node: RealNode, image: str, *command: str) -> str:
    return node.containerd.ctr("run", "--rm", *AS_DEPLOYED, image, "weft-image", *command)


def test_weft_runs_in_it(node: RealNode, image: str) -> None:
    assert run(node, image, "weft", "--version") == f"weft {weft.__version__}\n"


def test_what_is_deployed_finds_all_that_it_imports(node: RealNode, image: str) -> None:
    for part in ("scheduler", "agent", "extender"):
        assert "Usage: weft" in run(node, image, "weft", part, "--help")
    for words in (("agent", "--node-name", "a"), ("scheduler", "--kubeconfig", "/missing")):
        with pytest.raises(RuntimeError, match="weft: error: ") as ended:
            run(node, image, "weft", *words)
        assert "Traceback" not in str(ended.value)


@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - {"kube-scheduler"}))
def test_it_starts_under_the_originals_names(node: RealNode, image: str, program: str) -> None:
    with pytest.raises(RuntimeError, match=f"running weft {PROGRAMS[program]}"):
        run(node, image, program, "-kubeconf", "/missing")


def test_a_command_is_not_needed(node: RealNode, image: str) -> None:
    """As gpushare's Deployment has it: neither command nor arguments, an environment alone."""
    options = ("run", "--rm", *AS_DEPLOYED, "--env", "PORT=none", "--env", "KUBECONFIG=/missing")
    with pytest.raises(RuntimeError, match="PORT=none: not a number; using 39999"):
        node.containerd.ctr(*options, image, "weft-image")
