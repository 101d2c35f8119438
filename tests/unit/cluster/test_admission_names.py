"""The admission policies protect every annotation and label that any placement is written with."""

import json
from pathlib import Path

import msgspec
import pytest
from dialect_pods import ASKING, pod

from weft.cluster.admission.cel import is_one_of
from weft.cluster.admission.protection import ASSIGNMENT
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod, write
from weft.dialects.shares import placement_of, share_on
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
    assert [key for key in (*marks.annotations, *marks.labels) if not covered(key)] == []


def test_names_become_literals_that_cel_reads_as_they_are() -> None:
    assert is_one_of("k", ["a'b", "c*"]) == "(k in ['a\\'b'] || k.startsWith('c'))"


def test_the_annotations_that_are_protected_are_in_the_reference() -> None:
    pages = Path(__file__).parents[3] / "docs/reference"
    text = "".join(page.read_text() for page in pages.glob("*.md"))
    missing = [name for name in ASSIGNMENT if name.rstrip("*") not in text]
    assert missing == [], json.dumps(missing)
