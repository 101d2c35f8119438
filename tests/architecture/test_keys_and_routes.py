"""The reference of annotations, labels, resources, routes and environment is complete, and true."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from weft.cli import compat
from weft.cluster.extender.routes import ELASTIC, GPUSHARE, WEFT, Route
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.dialects.catalog import ALL
from weft.host.agent import AgentPages
from weft.host.scheduler import StatusPages
from weft.model import annotations

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weft"
DOCS = ROOT / "docs" / "reference"
KEY = re.compile(r"(?:[a-z0-9]+(?:[.-][a-z0-9]+)*)/[A-Za-z0-9][\w.-]*\*?")
WITHOUT_DOMAIN = {
    "ALIYUN_COM_GPU_MEM_…",
    "scheduler.framework.gpushare.allocation",
    "cgpu.disable.isolation",
    "GPU_MEM_REQ",
    "gpu-fraction",
    "runai-gpu-group",
}
"""Keys that do not look like one; they are in the code as they are."""
OF_OTHERS = {"weft.dev/gpus", "hami.io/vgpu-…"}
"""The chart's label; what `written` of HAMi's dialect covers."""
VARIABLE = re.compile(
    r"""\benv(?:iron(?:ment)?)?(?:\.get\(|\[)\s*(?:"([A-Z_]+)"|([A-Z_]+)\b)(?!"?\]\s*=[^=])"""
)
NOT_READ = {"OMP_NUM_THREADS", "PYTHONPATH", "KUBERNETES_EXEC_INFO", "NVIDIA_VISIBLE_DEVICES"}
"""Handed on to what Weft starts, or a container's."""


def routes_page() -> str:
    """The part about HTTP routes and the environment."""
    text = (DOCS / "processes.md").read_text()
    return text.partition("\n## HTTP routes and environment\n")[2].partition("\n## ")[0]


def named(page: str, column: int = 0) -> list[str]:
    """Cells of this column of the page's tables that are one word in backticks."""
    rows = (DOCS / page).read_text().splitlines()
    cells = [row.split("|")[column + 1].strip() for row in rows if row.startswith("|")]
    return [m[1] for cell in cells if (m := re.fullmatch(r"`([^`]+)`", cell))]


def literals(path: Path) -> Iterator[str]:
    """Texts of a module, its docstrings left out."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def as_shown(key: str) -> str:
    """A key's beginning ends in … in the page."""
    key = key.removesuffix("*")
    return f"{key}…" if key.endswith(("-", "_", ".")) else key


def keys_of_the_code() -> set[str]:
    files = [*(SOURCE / "dialects").glob("*.py"), SOURCE / "model" / "annotations.py"]
    found = {text for path in files for text in literals(path) if KEY.fullmatch(text)}
    found |= {text for system in ALL for text in (*system.written, *system.written_on_nodes)}
    return {as_shown(text) for text in found}


def test_every_annotation_label_and_resource_is_in_the_reference_and_no_other() -> None:
    listed = named("annotations.md")
    assert len(set(listed)) == len(listed)
    assert set(listed) == keys_of_the_code() | WITHOUT_DOMAIN | OF_OTHERS
    text = "\n".join(path.read_text() for path in (SOURCE / "dialects").glob("*.py"))
    assert [key for key in WITHOUT_DOMAIN if f'"{key.rstrip("…")}' not in text] == []
    chart = (ROOT / "deploy" / "chart" / "templates" / "agent.yaml").read_text()
    assert "weft.dev/gpus" in chart


def test_every_constant_of_annotations_is_a_row() -> None:
    """Also one whose text is put together."""
    values = [v for k, v in vars(annotations).items() if k.isupper() and isinstance(v, str)]
    own = {as_shown(v) for v in values if "/" in v and v != annotations.RESOURCES}
    assert own <= set(named("annotations.md"))
    assert len(own) > 25


def test_what_schedulers_and_agents_write_is_said_to_be_written_by_them() -> None:
    rows = {
        m[1]: row
        for row in (DOCS / "annotations.md").read_text().splitlines()
        if (m := re.match(r"\| `([^`]+)` \|", row))
    }
    for system in ALL:
        for key in (*system.written, *system.written_on_nodes):
            writer = rows[as_shown(key)].split("|")[3]
            assert re.search(r"scheduler|plugin|agent|Weft", writer), key


def test_every_dialects_own_resource_is_in_the_reference() -> None:
    listed = set(named("annotations.md"))
    assert [r for system in ALL for r in system.resources if r not in listed] == []


def served() -> dict[str, set[str]]:
    """The paths of every server, as its own table has them."""
    live = cast(Any, _Nobody())
    reports = {ELASTIC: "status", GPUSHARE: "inspect", WEFT: ""}
    routes = [Route(path, "", 200, cast(Any, report)) for path, report in reports.items()]
    extender = ExtenderServer(Extender(live), routes)
    verbs = {f"ROUTE/{path.rpartition('/')[2]}" for path in extender._posts}
    inspects = {f"{path}/NODE" for path in extender._inspects}
    webhook = set(literals(SOURCE / "cluster" / "admission" / "webhook.py"))
    pages = StatusPages(live, live, [])
    return {
        "scheduler": {*pages._pages, "/explain/pods/NAMESPACE/NAME"},
        "extender": verbs | set(extender._gets) | inspects,
        "agent": set(AgentPages([], {})._pages),
        "webhook": {text for text in webhook if re.fullmatch(r"/[a-z]+", text)},
    }


class _Nobody:
    """Stands for a cluster that is never asked: only tables of paths are made."""

    def __getattr__(self, name: str) -> Any:
        return None


async def test_every_route_of_every_server_is_in_the_reference_and_no_other() -> None:
    text = routes_page().partition("### Environment")[0]
    shown: dict[str, set[str]] = {}
    process = ""
    for row in text.splitlines():
        if not row.startswith("| ") or row.startswith("| process"):
            continue
        first, path = (cell.strip() for cell in row.split("|")[1:3])
        for name in ("webhook", "agent", "extender]", "scheduler"):
            if name in first:
                process = name.rstrip("]")
                break
        shown.setdefault(process, set()).add(path.strip("`"))
    assert shown == served()


def variables_of_the_code() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        if "workloads" in path.parts or "testing" in path.parts:
            continue
        text = path.read_text()
        for literal, constant in VARIABLE.findall(text):
            if literal:
                found.add(literal)
            elif m := re.search(rf'^{constant} = "([A-Z_]+)"', text, re.MULTILINE):
                found.add(m[1])
    return found - NOT_READ


def test_every_environment_variable_is_in_the_reference_and_no_other() -> None:
    text = routes_page().partition("### Environment")[2]
    listed = re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(variables_of_the_code())


def test_every_flag_of_the_originals_is_in_the_reference_and_no_other() -> None:
    source = (SOURCE / "cli" / "compat.py").read_text()
    read = set(re.findall(r'flags\.pop\("([\w-]+)"', source))
    page = (DOCS / "processes.md").read_text()
    rows = re.findall(r"^\| (`-.*?) \|", page, re.MULTILINE)
    listed = {flag.lstrip("-") for row in rows for flag in re.findall(r"`(--?[\w-]+)`", row)}
    assert listed == read | set(compat._NOT_NEEDED)
