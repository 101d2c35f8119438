"""Examples work as they say: a third-party policy package, and experiments."""

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from msgspec.structs import replace

from weft.core.framework import Policy
from weft.core.framework.registry import register_entry_points
from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import data_paths, plan, read_spec
from weft.lab.experiment.spec.workloads import MeasuredPairs
from weft.testing import decide, node, pod

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "policy-plugin"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
ENTRY_POINTS = PROJECT["project"]["entry-points"]["weft.policies"]


@pytest.fixture
def policy() -> Iterator[type[Policy]]:
    """The class that the entry point names, found as an installed package's would be."""
    sys.path.insert(0, str(PLUGIN))
    try:
        registry = built_in()
        entries = [EntryPoint(n, value, "weft.policies") for n, value in ENTRY_POINTS.items()]
        assert register_entry_points(registry, entries) == ()
        (name,) = ENTRY_POINTS
        yield type(registry.create(name))
    finally:
        sys.path.remove(str(PLUGIN))
        for module in ENTRY_POINTS.values():
            sys.modules.pop(module.partition(":")[0], None)


def test_the_file_is_in_the_package() -> None:
    (value,) = ENTRY_POINTS.values()
    module = value.partition(":")[0]
    assert importlib.util.find_spec(module) is None, "the example must not be installed for this"
    assert (PLUGIN / f"{module}.py").is_file()
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["include"] == [f"{module}.py"]


def test_it_fills_the_node_with_the_fewest_gpus(policy: type[Policy]) -> None:
    nodes = [node("a", gpus=8), node("b", gpus=2), node("c", gpus=4)]
    pods = [pod("one", milli=500), pod("two", milli=500), pod("three", gpus=2)]
    found = decide([policy()], nodes, pods)
    places = {uid: (place.node, [s.gpu for s in place.shares]) for uid, place in found.items()}
    assert places == {"one": ("b", [0]), "two": ("b", [0]), "three": ("c", [0, 1])}


def test_its_option_spares_small_nodes(policy: type[Policy]) -> None:
    nodes = [node("a", gpus=8), node("b", gpus=2), node("c", gpus=4)]
    place = decide([policy(spare_up_to=2)], nodes, [pod("one", milli=500)])["one"]
    assert place is not None
    assert place.node == "c"


EXPERIMENTS = sorted((PLUGIN.parent / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.name)
def test_a_cell_of_each_experiment_runs(file: Path) -> None:
    spec = read_spec(file)
    small = {"jobs": 20} if isinstance(spec.workload, MeasuredPairs) else {}
    spec = replace(spec, decisions=False, workload=replace(spec.workload, **small))
    runner = runner_of(spec, data_paths(spec, file.parent), built_in().from_spec)
    result = runner.run(plan(spec)[0])
    assert result.measures["unfinished"] == 0
    assert result.measures["jct_mean_s"]
