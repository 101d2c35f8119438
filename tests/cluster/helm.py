"""helm, which renders deploy/chart: found on PATH in the pinned version, else built with Go.

Run this file to build it; it is quick when it is there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from go_tools import GoTools, NoBinariesError, Say

HELM = "helm"
CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
_MODULE = "helm.sh/helm/v4"


def _link_flags(versions: Mapping[str, str]) -> list[str]:
    return [f"{_MODULE}/internal/version.version={versions[HELM]}"]


_TOOLS = GoTools(
    folder=Path(__file__).resolve().parent / "helm_tools",
    packages={HELM: f"{_MODULE}/cmd/helm"},
    version_of={HELM: _MODULE},
    link_flags=_link_flags,
    how_to="install Go and run `make helm`, or install that version of helm",
)


class HelmError(Exception):
    """helm refused; the text is what it said."""


def find_or_build(say: Say, *, build: bool = True) -> Path:
    """Where helm lies, built first if need be; `NoBinariesError` where that may not be."""
    version = _TOOLS.versions()[HELM]
    there = shutil.which(HELM)
    if there and re.search(rf"{re.escape(version)}\b", _run(Path(there), ["version", "--short"])):
        return Path(there)
    built = _TOOLS.cache() / HELM
    if not os.access(built, os.X_OK):
        if not build:
            raise NoBinariesError("no helm: run `make helm`")
        _TOOLS.build([HELM], say)
    return built


def render(helm: Path, *options: str, name: str = "weft") -> list[dict[str, object]]:
    """The chart's objects with these options, in helm's order."""
    return [item for item in yaml.safe_load_all(text(helm, *options, name=name)) if item]


def text(helm: Path, *options: str, name: str = "weft") -> str:
    """The output of `helm template` for the chart; in weft-system unless the options say else."""
    return _run(helm, ["template", name, str(CHART), "--namespace", "weft-system", *options])


def lint(helm: Path, *options: str) -> str:
    """The output of `helm lint --strict` on the chart."""
    return _run(helm, ["lint", "--strict", str(CHART), *options])


def helm_at(helm: Path, *arguments: str) -> str:
    """The output of helm with these arguments."""
    return _run(helm, arguments)


def _run(helm: Path, arguments: Sequence[str]) -> str:
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def main() -> int:
    """Build it where it is missing; 1 with the reason where that cannot be."""

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        sys.stdout.write(f"{find_or_build(say)}\n")
    except NoBinariesError as error:
        say(f"helm: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
