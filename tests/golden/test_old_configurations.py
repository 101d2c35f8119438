"""`weft config import` of each original's own configurations: what it prints, byte for byte.

The files are written after the originals' own: same fields, same values. Kube-Knots has none.
"""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from weft.cli.main import app
from weft.cluster.config.read import decode

FOLDER = Path(__file__).parent / "old_configurations"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".json", ".yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_originals_configuration_becomes_what_it_became(path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "import", str(path)])
    text = f"{done.stdout}# stderr\n{done.stderr}# exit code {done.exit_code}\n"
    assert text == path.with_suffix(f"{path.suffix}.expected").read_text()
    assert (done.exit_code == 3) == ("not carried over" in done.stderr)
    for document in yaml.safe_load_all(done.stdout):
        if document["kind"] == "WeftConfiguration":
            decode(yaml.safe_dump(document).encode(), path.name)


def test_every_system_with_a_configuration_is_here() -> None:
    systems = {path.name.partition("-")[0] for path in FILES}
    assert systems == {"alnair", "coscheml", "elastic", "genius", "gpushare"}
