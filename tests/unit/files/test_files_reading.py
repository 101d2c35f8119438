"""Files that unpack to more than they look like, and words that only look like numbers."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.core.record import read as read_decisions
from weft.files import reading
from weft.files.reading import inflate, open_plain, read_line, read_text, unpack
from weft.host.interference_files import read_predictor
from weft.lab.simulate.arrivals import read_orders
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.model import BadInputError
from weft.model.number_text import decimal_number, is_text, whole_number

MIB = 1 << 20
Read = Callable[[Path], Any]
READERS: dict[str, Read] = {
    "nodes": read_nodes,
    "pods": read_pods,
    "orders": lambda path: read_orders(path, 1, 1, 1),
    "decisions": lambda path: list(read_decisions(path)[1]),
    "model": lambda path: read_predictor(path.read_bytes(), str(path)),
}


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """64 kB that unpack to 64 MiB, where 4 MiB are the most; a real one differs in size alone."""
    monkeypatch.setattr(reading, "MOST_BYTES", 4 * MIB)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"0" * (64 * MIB), 1))
    return path


@pytest.mark.parametrize("what", READERS)
def test_what_unpacks_to_too_much_is_refused_before_it_is_in_memory(bomb: Path, what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadInputError, match=r"more than 256 MiB, unpacked; split the file"):
            READERS[what](bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_a_later_line_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    path = tmp_path / "decisions.gz"
    path.write_bytes(gzip.compress(b"{}\n" + b"x" * 2_000))
    with open_plain(path) as file:
        assert read_line(file, "w") == b"{}\n"
        with pytest.raises(BadInputError, match="w: this line has more than"):
            read_line(file, "w")


def test_a_blob_of_signals_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zlib.compress(b"0" * 2_000)
    assert inflate(packed) == b"0" * 2_000
    with pytest.raises(zlib.error, match="cut off"):
        inflate(packed[:-5])
    monkeypatch.setattr(reading, "MOST_BYTES", 1_999)
    with pytest.raises(zlib.error, match="cut off, or has more than"):
        inflate(packed)


def test_what_is_as_large_as_it_may_be_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"0123456789"
    monkeypatch.setattr(reading, "MOST_BYTES", len(body))
    for name, packed in (("a", body), ("b", gzip.compress(body)), ("c", zlib.compress(body))):
        path = tmp_path / name
        path.write_bytes(packed)
        if name == "c":
            assert inflate(packed) == body
            continue
        assert read_text(path) == body.decode()
        assert unpack(packed, "w") == body
        with open_plain(path) as file:
            assert read_line(file, "w") == body
            assert read_line(file, "w") == b""


NO_NUMBERS = ["１００", "1_000", " 1", "1 ", "", "+", "٣", "0x10", "1e", "½", "1,5", "nan", "inf"]


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1" * 101, "1.0", "1e3"])
def test_what_only_python_takes_for_a_whole_number_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        whole_number(text)


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1_0.5", "1e1_0", "1e1.5", "١.٥", "0x1p3", "1e999"])
def test_nor_for_a_decimal(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decimal_number(text)


@pytest.mark.parametrize("text", ["0", "-7", "+12", "007"])
def test_whole_numbers(text: str) -> None:
    assert whole_number(text) == decimal_number(text) == int(text)


@pytest.mark.parametrize("text", ["1.5", ".5", "5.", "-1e3", "2.5E-2"])
def test_decimals(text: str) -> None:
    assert decimal_number(text) == float(text)


def test_text() -> None:
    assert is_text("😀 – é")
    assert not is_text("a\ud83d")
