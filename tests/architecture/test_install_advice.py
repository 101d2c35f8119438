"""Nothing advises to install what is not ours: plain `weft` on the package index is others'.

Weft itself, `weft-gpu`, is on no index yet: until it is, every text says how to install from a
checkout.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from weft.model.errors import install_extra

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "docs", "deploy", "examples", "benchmarks", "tests/cluster", ".ci")
FILES = sorted(
    path
    for path in (*ROOT.iterdir(), *(each for place in PLACES for each in (ROOT / place).rglob("*")))
    if path.is_file() and path.suffix not in (".lock", ".pyc", ".csv", ".gz", ".svg", ".sum")
)
INSTALL = re.compile(
    r"\b(?:uvx|(?:pip3?|pipx|uv|poetry|pdm|conda|mamba|rye)\s+(?:pip|tool|install|add|run|inject))\s+"
    r"(?:(?:pip|tool|install|add|run|-[-\w=]+)\s+)*"
    r"(?P<what>[^\n`|;]*)"
)
OURS = re.compile(
    r"""(?<![\w./-])["']?weft(?:-gpu)?(?:\[[\w,]*\])?(?:[=<>~!@]=?[\w.]*)?["']?(?=\s|$)"""
)
IMAGE = re.compile(r"\bimage:\s*[\"']?(?:docker\.io/)?(?:library/)?weft(?:-gpu)?(?:[:@\"'\s]|$)")


def advice(text: str) -> list[str]:
    """Installs of Weft from an index, and images by a name that is not ours."""
    found = [
        match[0].strip() for match in INSTALL.finditer(text) if OURS.search(match["what"].strip())
    ]
    return [*found, *(match[0].strip() for match in IMAGE.finditer(text))]


@pytest.mark.parametrize(
    "line",
    [
        "pip install weft",
        "pip install 'weft[png]'",
        'python -m pip install -U "weft[gpu,workloads]==0.1"',
        "uv pip install weft",
        "uv add weft-gpu",
        "uvx weft",
        "uv tool install --quiet weft",
        "pipx install weft>=1",
        "an image with `pip install weft`",
        "image: weft",
        "image: weft:0.1",
    ],
)
def test_the_pattern_finds_what_it_is_for(line: str) -> None:
    assert advice(line)


@pytest.mark.parametrize(
    "line",
    [
        install_extra("gpu"),
        "pip install -e '.[gpu,workloads]'",
        "uv pip install -e examples/policy-plugin",
        "uv pip uninstall weft-small-nodes",
        "pip install --quiet uv==$(UV_VERSION)",
        "pip install .  # in Weft's checkout, then `weft scheduler`",
        "image: registry.example/weft-gpu",
    ],
)
def test_installs_from_a_checkout_are_ours(line: str) -> None:
    assert not advice(line.partition("  #")[0])


def test_no_file_advises_to_install_what_is_not_ours() -> None:
    assert len(FILES) > 500
    found = {
        str(path.relative_to(ROOT)): lines
        for path in FILES
        if (lines := advice(path.read_text(encoding="utf-8", errors="ignore")))
    }
    assert found == {}


def test_the_distribution_has_a_name_of_its_own_and_nobody_asks_for_another() -> None:
    projects = [tomllib.loads(path.read_text()) for path in FILES if path.name == "pyproject.toml"]
    (ours,) = (p["project"] for p in projects if "weft" in p["project"].get("scripts", {}))
    assert ours["name"] == "weft-gpu"
    for project in projects:
        asked = [re.split(r"[\s\[<>=~!;]", each)[0] for each in project["project"]["dependencies"]]
        assert "weft" not in asked
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [p["source"] for p in locked if p["name"] == "weft-gpu"] == [{"editable": "."}]
    assert not [p for p in locked if p["name"] == "weft"]


def test_every_extra_that_an_error_names_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"install_extra\([\"'](\w+)[\"']\)", path.read_text())
    }
    assert named == {"gpu", "interference", "experiments", "workers"}
    assert named <= set(extras)


def test_readmes_commands_for_kind_are_those_of_make_kind_demo() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## On kind\n")[2]
    written = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    make = ["make", "-n", "kind-demo"]
    ran = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    first_words = ("kind ", "BUILDX_NO", "helm install", "kubectl apply")
    run = [line for line in ran.stdout.splitlines() if line.startswith(first_words)]
    assert written == run
    assert len(run) == 5
    named = set(re.findall(r"(?:deploy|examples)/[\w./-]+", " ".join(run)))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
