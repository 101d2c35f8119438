"""The checked-in modules of the .proto files are those that the compiler makes of them."""

from pathlib import Path

from protocol_stubs import SOURCES, generate, protocols, stubs_of


def test_the_stubs_are_current(tmp_path: Path) -> None:
    generate(tmp_path)
    stubs = [stub for protocol in protocols() for stub in stubs_of(protocol)]
    assert stubs
    stale = [str(s) for s in stubs if (SOURCES / s).read_text() != (tmp_path / s).read_text()]
    assert stale == [], "run python tests/architecture/protocol_stubs.py"
