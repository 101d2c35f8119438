"""`weft generate`: the file is an argument; --output is the form, and was the file."""

import pytest
from commands import Weft


@pytest.fixture
def folder(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(weft.folder)


@pytest.mark.usefixtures("folder")
def test_the_file_is_an_argument_and_stdout_without(weft: Weft) -> None:
    printed = weft("generate", "nodes", "--gpus", 8)
    assert printed.out.startswith("sn,cpu_milli,memory_mib,gpu,model\n")
    assert weft("generate", "nodes", "-", "--gpus", 8, "-o", "csv") == printed
    assert weft("generate", "nodes", "n.csv", "--gpus", 8) == (0, "", "")
    assert (weft.folder / "n.csv").read_text() == printed.out
    pods = weft("generate", "pods", "--gpus", 8).out
    assert weft("generate", "pods", "p.csv", "--gpus", 8).code == 0
    assert (weft.folder / "p.csv").read_text() == pods


@pytest.mark.usefixtures("folder")
def test_what_can_only_be_a_file_is_still_taken_for_one_with_a_note(weft: Weft) -> None:
    said = weft("generate", "nodes", "--gpus", 8, "-o", "old.csv")
    assert (said.code, said.out) == (0, "")
    assert said.err == (
        "weft: note: --output selects the format; to write a file: weft generate nodes old.csv\n"
    )
    assert (weft.folder / "old.csv").read_text().startswith("sn,")
    printed = weft("generate", "nodes", "--gpus", 8, "--output", "-")
    assert printed.out == (weft.folder / "old.csv").read_text()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "words", [("-o", "json"), ("-o", "nodes"), ("new.csv", "-o", "other.csv"), ("-o", "table")]
)
def test_what_may_be_meant_otherwise_is_refused(weft: Weft, words: tuple[str, ...]) -> None:
    before = sorted(weft.folder.iterdir())
    said = weft("generate", "pods", *words)
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith(
        "is not a supported format; use csv, or name the file without an option: weft generate "
        "pods pods.csv\n"
    )
    assert sorted(weft.folder.iterdir()) == before
