"""Where policies' interference comes from: files, the configuration, and a simulation's option."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.cli.predicted import configured, read_interference
from weft.config.form import Configuration, ExtenderSettings, InterferenceSettings
from weft.config.read import decode
from weft.framework.interference import InterferenceView, Tier
from weft.model import BadInputError
from weft.policies.static_table import ANY_MODEL, card_of, static_table

TABLE = {"A": {"A": 1.5, "B": -1}, "B": {"A": -1, "B": 1.2}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "table.json"
    found.write_text(json.dumps(TABLE))
    return found


def test_a_table_counts_on_every_model_of_gpu(file: Path) -> None:
    view = InterferenceView(read_interference(file))
    card = card_of(view, "V100")
    assert view.source.gpu_models == (ANY_MODEL,)
    assert np.exp(card.mean[0, 0]) == pytest.approx(1.5)
    assert np.isinf(card.upper[0, 1])
    assert card.tier[:2, :2].tolist() == [[Tier.TABLE] * 2] * 2
    unknown = view.index_of("who")
    assert card.tier[unknown, 0] == Tier.UNKNOWN
    assert np.exp(card.mean[unknown, 0]) == pytest.approx(1.5), "as the worst that is known"


def test_predictions_as_weft_writes_them(tmp_path: Path) -> None:
    told = static_table(TABLE)
    path = tmp_path / "told.json"
    path.write_bytes(msgspec.json.encode(told))
    assert read_interference(path) == told


@pytest.mark.parametrize(
    "text", ["", "[]", '{"A": 1}', '{"A": {"B": 0}}', '{"A": {"B": "x"}}', '{"classes": ["a"]}']
)
def test_what_is_no_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"bad\.json"):
        InterferenceView(read_interference(path))


def test_the_configuration_names_it_or_it_lies_where_it_did(file: Path) -> None:
    named = Configuration(interference=InterferenceSettings(table=str(file)))
    found = configured(named)
    assert found is not None
    assert found.classes == ("A", "B")
    usual = ExtenderSettings(enabled=True, interference_table=str(file))
    assert configured(Configuration(extender=usual)) is not None
    off = msgspec.structs.replace(usual, enabled=False)
    assert configured(Configuration(extender=off)) is None
    missing = Configuration(interference=InterferenceSettings(model="/no/such"))
    with pytest.raises(BadInputError, match=r"interference\.model: /no/such: cannot be read"):
        configured(missing)


def test_table_and_model_exclude_each_other() -> None:
    text = b"apiVersion: weft.dev/v1\nkind: WeftConfiguration\ninterference: {table: a, model: b}\n"
    with pytest.raises(BadInputError, match=r"interference\.model: and table exclude"):
        decode(text, "weft.yaml")


def test_simulate_tells_policies(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two pods of one application may share the only GPU, of the two others none."""
    from commands import Weft

    weft = Weft(tmp_path, monkeypatch, capsys)
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,64000,1,T4\n")
    rows = [f"p{i},1000,1000,1,500,{kind}" for i, kind in enumerate(("A", "B"))]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,application"
    pods.write_text("\n".join([head, *rows]) + "\n")
    words = ("simulate", "--nodes", nodes, "--pods", pods, "--policy", "coscheml", "--demand", "1",
             "--output", "json", "--no-timing")  # fmt: skip
    placed = []
    for more in ((), ("--interference", file)):
        said = weft(*words, *more)
        assert said.code == 0, said.err
        placed.append(json.loads(said.out)["runs"][0]["used_gpu_milli"])
    assert placed == [1000, 500]
