"""Makes the Python modules of every .proto file of Weft. Run it after changing one.

They are checked in beside their .proto, so that nobody who installs Weft needs a compiler;
`test_protocol_stubs.py` holds that they are current.
"""

import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"


def protocols() -> list[Path]:
    """Every .proto file, below `src`."""
    return sorted(path.relative_to(SOURCES) for path in SOURCES.rglob("*.proto"))


def stubs_of(protocol: Path) -> tuple[Path, Path]:
    """The module and its types that are made of this file."""
    return (
        protocol.with_name(f"{protocol.stem}_pb2.py"),
        protocol.with_name(f"{protocol.stem}_pb2.pyi"),
    )


def generate(into: Path) -> None:
    """Write the stubs of all of them below this folder."""
    from grpc_tools import protoc

    arguments = [f"--proto_path={SOURCES}", f"--python_out={into}", f"--pyi_out={into}"]
    code = protoc.main(["protoc", *arguments, *(str(SOURCES / path) for path in protocols())])
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    generate(SOURCES)
    for path in protocols():
        sys.stdout.write(f"{path}\n")
