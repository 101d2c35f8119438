"""The admission policies protect every annotation and label that any placement is written with."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from dialect_pods import ASKING, pod

from weft.cluster.admission.cel import is_one_of
from weft.cluster.admission.protection import ASSIGNMENT
from weft.dialects.catalog import ALL, ASKING_LABELS, RESOURCES
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod, write
from weft.dialects.resources import PodWords
from weft.dialects.shares import placement_of, share_on
from weft.dialects.system import BaseDialect
from weft.model import Gpu, Node, PodManifest

NODE = Node("n", tuple(Gpu(i, 16_160, uuid=f"GPU-{i}") for i in range(4)), unit_mib=1024)


def covered(key: str) -> bool:
    return any(
        key.startswith(name[:-1]) if name.endswith("*") else key == name for name in ASSIGNMENT
    )


@pytest.mark.parametrize("system", [name for name in ASKING if name != "none"])
def test_what_a_placement_writes_is_protected(system: str) -> None:
    settings = DialectSettings(gpushare_unit="node", interference_table=system == "coscheml")
    manifest = msgspec.convert(pod("p", ASKING[system], node="n"), PodManifest)
    request = parse_pod(manifest, settings)
    shares = [
        share_on(at, gpu_request, NODE.gpus[at])
        for at, gpu_request in enumerate(request.shape.gpu_requests)
    ]
    marks = write(request, placement_of(request, NODE, shares), NODE, 1)
    assert marks.annotations
    others = [key for key in (*marks.annotations, *marks.labels) if not covered(key)]
    # Volcano's scheduler goes on beside Weft, and writes the same.
    assert bool(others) == (system == "volcano")
    assert not any(key.startswith("weft.dev/") for key in others)


@pytest.mark.parametrize("system", ALL, ids=lambda system: system.name)
def test_a_pod_asks_with_what_the_api_server_looks_at_alone(system: BaseDialect) -> None:
    """A dialect that asked in yet another way would be forgotten by the policy that schedules."""
    settings = DialectSettings(interference_table=system.name == "coscheml")
    asking = pod("p", ASKING[system.name])
    if system.name == "coscheml":
        asking["spec"]["containers"][0]["name"] = "lammps"
    manifest = msgspec.convert(asking, PodManifest)
    assert system.carries(PodWords(manifest), settings)
    for part in ("limits", "requests"):
        amounts = asking["spec"]["containers"][0]["resources"][part]
        for name in RESOURCES:
            amounts.pop(name, None)
    for label in ASKING_LABELS:
        asking["metadata"]["labels"].pop(label, None)
    marks = {name.replace("*", "a"): "1" for each in ALL for name in each.written}
    asking["metadata"]["annotations"] = marks
    asking["spec"]["schedulerName"] = next(iter(system.scheduler_names), "weft")
    assert not system.carries(PodWords(msgspec.convert(asking, PodManifest)), settings)


def test_names_become_literals_that_cel_reads_as_they_are() -> None:
    assert is_one_of("k", ["a'b", "c.d/*"]) == "(k in ['a\\'b'] || k.matches('^(c\\\\.d/)'))"


def test_the_annotations_that_are_protected_are_in_the_reference() -> None:
    pages = Path(__file__).parents[3] / "docs/reference"
    text = "".join(page.read_text() for page in pages.glob("*.md"))
    missing = [name for name in ASSIGNMENT if name.rstrip("*") not in text]
    assert missing == [], json.dumps(missing)


def test_no_expression_has_an_empty_group() -> None:
    """A system without resources and labels, as KAI, left one, which no API server takes."""
    text = (Path(__file__).resolve().parents[3] / "deploy/scheduler.yaml").read_text()
    assert "ValidatingAdmissionPolicy" in text
    assert re.findall(r"(?<!\w)\(\s*\)|(?:&&|\|\|)\s*\)", text) == []
