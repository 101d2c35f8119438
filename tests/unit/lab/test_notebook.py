"""`weft.lab.compare`: the numbers of `weft simulate`, policies by name and as classes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import to_builtins

import weft.lab
from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.lab.notebook import compare
from weft.model import BadInputError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,256000,4,A100\nn2,64000,256000,2,T4\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
HEADER += ",creation_time,deletion_time,scheduled_time\n"
NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "notebooks" / "compare-policies.ipynb"


class Emptiest(Policy):
    name = "emptiest"
    summary = "the node with the most idle GPUs"

    def score_nodes(self, query: Query) -> Ints:
        return query.idle


@pytest.fixture
def trace(tmp_path: Path) -> tuple[Path, Path]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    rows = [f"p{i},1000,1000,1,{(300, 500, 1000)[i % 3]},,{i},{i + 50},{i}\n" for i in range(20)]
    pods.write_text(HEADER + "".join(rows))
    return nodes, pods


@pytest.mark.parametrize("timed", [False, True])
def test_the_numbers_are_those_of_weft_simulate(trace: tuple[Path, Path], timed: bool) -> None:
    nodes, pods = trace
    names = ["best-fit", "spread"]
    options = [f"--{name}={path}" for name, path in (("nodes", nodes), ("pods", pods))]
    options += [f"--policy={name}" for name in names]
    command = [sys.executable, "-m", "weft", "simulate", *options, "--seeds=2", "--no-timing"]
    asked = [*command, "--jobs=1", "-o", "json", *(["--timed"] if timed else [])]
    said = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    found = weft.lab.compare(str(nodes), pods, names, seeds=2, timed=timed)
    assert json.loads(json.dumps(to_builtins(found.results))) == said
    assert [row["policy"] for row in found.rows()] == [
        line.split()[0] for line in str(found).splitlines()[1:]
    ]
    assert {(row["policy"], row["seed"]) for row in found.runs()} == {
        (name, seed) for name in names for seed in (42, 43)
    }


def test_a_policy_may_be_a_class(trace: tuple[Path, Path]) -> None:
    both = compare(*trace, [Emptiest, "spread"], seeds=1)
    assert {row["policy"] for row in both.rows()} == {"emptiest", "spread"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_data_frame_has_the_rows(trace: tuple[Path, Path], library: str) -> None:
    pytest.importorskip(library)
    both = compare(*trace, ["best-fit", "spread"], seeds=1)
    frame = getattr(both, f"to_{library}")()
    rows = both.rows()
    assert type(frame).__module__.partition(".")[0] == library
    assert len(frame) == len(rows) == 2
    assert list(frame.columns) == list(rows[0])
    known = [name for name, value in rows[0].items() if value is not None]
    assert {"policy", "seeds"} < {*known}
    for name in known:
        assert list(frame[name]) == [row[name] for row in rows]


@pytest.mark.parametrize(
    ("policies", "seeds", "says"),
    [(["bestfit"], 1, "did you mean"), ([], 1, "at least one policy"), (["fgd"], 0, "one seed")],
)
def test_bad_input_is_named(
    trace: tuple[Path, Path], policies: list[str], seeds: int, says: str
) -> None:
    with pytest.raises(BadInputError, match=says):
        compare(*trace, policies, seeds)


def test_the_table_of_a_notebook_has_no_markup_of_names(trace: tuple[Path, Path]) -> None:
    class Marked(Emptiest):
        name = "<b>mine"

    html = compare(*trace, [Marked], seeds=1)._repr_html_()
    assert "&lt;b&gt;mine" in html
    assert "<b>" not in html


def test_the_notebook_runs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        assert cell["cell_type"] == "markdown" or cell["outputs"] == []
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "emptiest-node" in str(names["mine"])
