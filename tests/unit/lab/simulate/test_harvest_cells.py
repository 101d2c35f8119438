"""The safety grid makes equal runs once: they are equal, run by run."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from long_form import few_or_many

from weft.lab.simulate.sharing.ece_like import JobMix
from weft.lab.simulate.sharing.exporter import METRICS, SOUND, ExporterFaults
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "bench_harvest.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_harvest", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("policy", "faults", "same"),
    [
        ("horus", ExporterFaults(noise=0.1), SOUND),
        ("auto", ExporterFaults(delay_ns=300 * SECOND_NS), ExporterFaults(missing=1.0)),
        ("ferikoglou-safe", ExporterFaults(spoofed="sm_active_ratio", reads="most"), SOUND),
        ("kube-knots-cbp", ExporterFaults(spoofed="power_w", reads="zero"), SOUND),
        ("genius", ExporterFaults(spoofed="gpu_util_ratio", reads="most"), SOUND),
    ][: few_or_many(1, 5)],
)
def test_faults_that_change_nothing_change_nothing(
    bench: ModuleType, policy: str, faults: ExporterFaults, same: ExporterFaults
) -> None:
    assert bench.same_as(policy, faults, 1) == same
    one, other = (
        bench.answer(None, bench.Ask(policy, 100, 1, 1, JobMix.SSD, each))
        for each in (faults, same)
    )
    assert one == other


def test_what_a_policy_reads_is_run(bench: ModuleType) -> None:
    """Every metric for those that read all; every fault where there are several cards."""
    for metric in METRICS:
        faults = ExporterFaults(spoofed=metric)
        assert bench.same_as("auto", faults, 1) == faults
        assert bench.same_as("load-aware", faults, 1) == faults
    assert bench.same_as("horus", ExporterFaults(noise=0.1), 4) == ExporterFaults(noise=0.1)
    assert bench.same_as("binpack", ExporterFaults(noise=0.1), 4) == SOUND
    assert bench.same_as("auto", ExporterFaults(delay_ns=60 * SECOND_NS), 1).delay_ns


def test_a_cell_is_settled_early_only_where_nothing_is_in_doubt(bench: ModuleType) -> None:
    run = bench.answer(None, bench.Ask("binpack", 100, 1, 1, JobMix.SSD, SOUND))

    def runs(*percents: float) -> list[SharedRun]:
        return [msgspec.structs.replace(run, jct_mean_s=100.0 + one) for one in percents]

    base = runs(0, 0, 0, 0, 0)
    assert bench.is_sure(runs(0.0, 0.1, 0.0, 0.1, 0.0), base)
    assert bench.is_sure(runs(-50, -51, -49, -50, -50), base)
    assert not bench.is_sure(runs(1.0, 1.2, 0.8, 1.8, 0.2), base)
    assert not bench.is_sure(runs(-10, -20, 0, -20, 0), base)
    assert not bench.is_sure(runs(5, 5, 5, 5, 5), base)
