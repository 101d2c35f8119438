"""Documents promise nothing: what they call missing is refused by the code, in words they quote."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main

from weft.cli import main as weft_cli
from weft.cluster.state.namespaces import NamespaceView
from weft.cluster.state.pod_reader import UnknownVolumes, constraints_of
from weft.kube.pods import Pod
from weft.model.reason import TEXT, Code

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *(path for top in ("docs", "examples") for path in sorted((ROOT / top).rglob("*.md"))),
    *sorted(
        path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ),
]
MISSING = re.compile(
    r"not (yet )?(part of|implemented|supported)|cannot be given|unimplemented|"
    r"planned|coming soon|in a later|"
    r"next release|(honour|form|there|line|possible) yet\b|does not exist yet",
    re.IGNORECASE,
)
REASONS = (ROOT / "docs" / "reference" / "reasons.md").read_text()
LIST = REASONS.partition("## What Weft alone does not honour")[2]
BY_LABELS = {"matchLabels": {"team": "a"}}
TERM = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": BY_LABELS}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
ASKED = {
    "affinity.podAffinity": {"affinity": {"podAffinity": REQUIRED}},
    "affinity.podAntiAffinity": {"affinity": {"podAntiAffinity": REQUIRED}},
    "resourceClaims": {"resourceClaims": [{"name": "gpu"}]},
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_calls_missing_is_quoted_from_what_refuses_it(page: Path) -> None:
    quoted = (TEXT[Code.UNSUPPORTED],)
    lines = [line for line in page.read_text().splitlines() if MISSING.search(line)]
    assert [line for line in lines if not any(text in line for text in quoted)] == []


def test_no_help_text_calls_anything_missing() -> None:
    """Whoever reads `--help` wants what there is."""
    texts: dict[str, str] = {}

    def walk(name: str, command: Any) -> None:
        texts[name] = " ".join(
            [
                command.help or "",
                *(getattr(option, "help", None) or "" for option in command.params),
            ]
        )
        for below, child in getattr(command, "commands", {}).items():
            walk(f"{name} {below}", child)

    walk("weft", typer.main.get_command(weft_cli.app))
    assert len(texts) > 20
    assert {name: text for name, text in texts.items() if MISSING.search(text)} == {}


def test_readme_says_first_who_delivers_and_how_to_install_it() -> None:
    first = (ROOT / "README.md").read_text().partition("```")[0]
    assert "docs/howto/install-with-helm.md" in first
    assert (ROOT / "src" / "weft" / "cli" / "agent.py").exists()
    assert (ROOT / "deploy" / "chart" / "Chart.yaml").exists()


def test_parse_says_of_no_variable_that_weft_sets_it() -> None:
    source = "".join(
        path.read_text()
        for wing in ("cli", "dialects")
        for path in (ROOT / "src" / "weft" / wing).glob("*.py")
    )
    assert not re.search(r"sets \{key\}|value Weft delivers|Weft sets", source)


@pytest.mark.parametrize("field", ASKED)
def test_what_is_listed_as_not_honoured_is_refused(field: str) -> None:
    assert f"`{field}`" in LIST
    body = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {"containers": [{"name": "c"}], **ASKED[field]},
    }
    pod, unread = msgspec.convert(body, Pod), NamespaceView()
    refused = constraints_of(pod, UnknownVolumes(), unread).unsupported
    assert refused
    assert "run this pod through kube-scheduler" in refused


def test_a_pod_that_asks_for_none_of_it_is_not_refused() -> None:
    body = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [{"name": "c"}]}}
    assert not constraints_of(msgspec.convert(body, Pod), UnknownVolumes()).unsupported


def test_the_pattern_finds_what_it_is_for() -> None:
    for line in (
        "not part of this release yet",
        "is not implemented",
        "on the command line yet;",
        "cannot be given here",
    ):
        assert MISSING.search(line)
