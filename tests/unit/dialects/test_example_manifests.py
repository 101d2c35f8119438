"""Each system's examples are read as that system's pods, without an error."""

from pathlib import Path

import pytest

from weft.cluster.state.manifests import load, manifest_of, pods_in, split
from weft.dialects.catalog import ALL
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod

EXAMPLES = Path(__file__).parents[3] / "examples"
CHART_VALUES, OTHERS = "values.yaml", ("experiments", "originals")
FILES = sorted(
    path
    for path in EXAMPLES.glob("*/*.yaml")
    if path.name != CHART_VALUES and path.parent.name not in OTHERS
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_pod_is_its_systems(path: Path) -> None:
    settings = DialectSettings(interference_table=path.parent.name == "coscheml")
    pods = [pod for document in split(path.read_text()) for pod in pods_in(load(document))]
    assert pods
    read = [parse_pod(manifest_of(pod), settings) for pod in pods]
    assert {request.dialect for request in read} - {"none"} == {path.parent.name}


def test_every_system_has_examples() -> None:
    assert {path.parent.name for path in FILES} == {system.name for system in ALL}
