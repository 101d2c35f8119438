"""The dialects' documents are complete and their example is what the command prints."""

import json
import re
from pathlib import Path

import typer
from manifests import ask, node, parsed, place
from typer.testing import CliRunner

from weft.cli.parse import parse
from weft.dialects import alnair, elastic, gpushare, hami
from weft.dialects.catalog import ALL
from weft.dialects.registry import write
from weft.dialects.system import CLASSES
from weft.model import annotations
from weft.model.agent_offer import ISOLATIONS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = ("dialects.md", "dialects-of-other-schedulers.md")
REFERENCE = "".join((DOCS / "reference" / page).read_text() for page in PAGES)
HOWTO = (DOCS / "howto" / "read-your-pods.md").read_text()


def test_every_dialect_has_a_section_with_its_names():
    for system in ALL:
        section = REFERENCE.partition(f"\n## {system.name}\n")[2].partition("\n## ")[0]
        assert section, system.name
        if system.name != "coscheml":
            assert "tie-break" in section
            missing = [n for n in (*system.resources, *system.scheduler_names) if n not in section]
            assert not missing


def test_every_mark_is_in_the_reference():
    for name in (
        annotations.GPU_MODEL,
        annotations.ISOLATION,
        annotations.APPLICATION,
        annotations.CLASS,
        *CLASSES,
        *ISOLATIONS,
        *hami.RULES,
        elastic.NANO_ASSUMED,
        elastic.NANO_CONTAINER,
        gpushare.ALLOCATION,
    ):
        assert name in REFERENCE
    on = node(81920, 81920)
    for resource in (
        "weft.dev/gpu-count",
        elastic.CORE[0],
        gpushare.GPU_MEM,
        alnair.MEMORY,
        hami.MEM,
    ):
        request = parsed(ask(resource, 1))
        marks = write(request, place(request, on, 0), on, 0)
        names = {*marks.annotations, *marks.labels, *marks.env["c"]}
        for name in names:
            short = re.sub(r"(container-|LIMIT_)\w+$", r"\1<", name)
            short = re.sub(r"^ALIYUN_COM_GPU_MEM(?=_)", "", short)
            assert short in REFERENCE, name


def test_all_33_traps_have_a_decision():
    traps = REFERENCE.partition("## Compatibility traps")[2]
    assert re.findall(r"^(\d+)\. ", traps, re.MULTILINE) == [str(n) for n in range(1, 34)]


def test_the_howtos_example_is_what_the_command_prints():
    pod = re.search(r"```yaml\n(.*?)```", HOWTO, re.DOTALL)
    printed = re.search(r"```json\n(.*?)```", HOWTO, re.DOTALL)
    assert pod is not None
    assert printed is not None
    app = typer.Typer()
    app.command("parse")(parse)
    arguments = ["--output", "json", "--gpushare-unit", "GiB", "-"]
    done = CliRunner().invoke(app, arguments, input=pod[1])
    assert json.loads(done.stdout) == json.loads(printed[1])
