"""`weft shadow`: its options, and what it prints."""

import json
from pathlib import Path

import pytest
from commands import Weft

from weft.cli import shadow
from weft.cli.output import ListOutput
from weft.cluster.shadow.comparison import BindingComparison, ComparedPlace
from weft.cluster.shadow.summary import ShadowTotals

SEEN = ComparedPlace("gpu-node-with-a-long-name-1", (0,), 250, 6.104, 1.3)
OWN = ComparedPlace("gpu-node-with-a-long-name-2", (0, 1), 500, 5.84, 1.1)


def comparison(own: ComparedPlace | None, agrees: str, why: str = "") -> BindingComparison:
    return BindingComparison("ml", "train-7", "u", "weft", agrees, SEEN, own, why)  # type: ignore[arg-type]


@pytest.fixture
def config(weft: Weft) -> Path:
    path = weft.folder / "c.yaml"
    path.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\n")
    return path


@pytest.mark.parametrize(
    ("duration", "said"),
    [
        ("ten", "--for: 'ten' is not a duration; write one such as 90s, 10m or 1h30m"),
        ("10", "'10' is not a duration"),
        ("0s", "is zero"),
        ("1m1h", "is not a duration"),
    ],
)
def test_a_bad_duration_is_one_error(weft: Weft, config: Path, duration: str, said: str) -> None:
    told = weft("shadow", "--config", config, "--for", duration)
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert said in told.err


def test_a_bad_configuration_and_a_silent_cluster_are_one_error(weft: Weft, config: Path) -> None:
    assert "no such file" in weft("shadow", "--config", weft.folder / "no.yaml").err.lower()
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    kubeconfig = weft.folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "current-context": "c",
            }
        )
    )
    told = weft("shadow", "--config", config, "--kubeconfig", kubeconfig)
    assert (told.code, told.err.count("\n")) == (1, 1)
    assert "run weft doctor" in told.err


def test_what_differs_stands_beside_both_places(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    totals = ShadowTotals()
    run = shadow.ShadowRun(Path("c.yaml"), ListOutput.table)
    for one in (
        comparison(SEEN, "same"),
        comparison(OWN, "other node"),
        comparison(None, "nowhere", "0/2 nodes: 2 × too little memory"),
    ):
        run.show(one)
        totals.add(one)
    same, other, nowhere = capsys.readouterr().out.splitlines()
    assert "%" not in same
    assert "6.10 → 5.84 %, allocates 0.25 → 0.50 GPUs, 1.30 → 1.10 ×" in other
    assert nowhere.endswith("nowhere               0/2 nodes: 2 × too little memory")
    shadow.sum_up(totals.summary(90.0, (3, 2), 1), ListOutput.table)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "3 bindings in 90 s." in printed
    assert "The configuration's own choices allocate +0.00 GPUs." in printed
    assert "Fragmentation after a binding changes by -0.132 percentage points, mean." in printed
    assert "The expected slowdown changes by -0.100, mean (1: full speed)." in printed
    assert "3 pods wait; the configuration would place 2 now." in printed
    assert "1 bindings could not be compared." in printed
