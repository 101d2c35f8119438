"""Damage to a decisions file is noticed, and said with its line; what is whole is read."""

import gzip
import io
import random
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest
from long_form import few_or_many

from weft.core.engine import NodesChanged, PodAdded, PodBound, PodGone
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder, read, replay
from weft.model import BadInputError
from weft.testing import node, pod

CREATE = built_in().create
HEADER = Header([ProfileUse("weft", [PolicyUse("best-fit")])], seed=3, keep_top=2)


@pytest.fixture(scope="module")
def whole() -> bytes:
    """A file of some 40 lines."""
    out = io.BytesIO()
    writer = DecisionsWriter(out)
    recorder = Recorder(HEADER.engine(CREATE), HEADER, writer.write)
    recorder.handle(NodesChanged(tuple(node(f"n{i}", gpus=2) for i in range(4))), 0)
    for number in range(16):
        recorder.handle(PodAdded(pod(f"p{number}", memory_mib=1000 + number)), number)
        recorder.handle(PodBound(f"p{number}"), number)
        if number >= 8:
            recorder.handle(PodGone(f"p{number - 8}"), number)
    writer.close()
    return out.getvalue()


def told(path: Path, text: bytes) -> str:
    """How a replay says what is wrong; "" where nothing is."""
    path.write_bytes(text)
    try:
        header, lines = read(path)
        verdict = replay(header, lines, CREATE)
    except BadInputError as error:
        return str(error)
    assert verdict.identical
    return "" if lines.check.state == "verified" else lines.check.why


def flip_bit(text: bytes, rng: random.Random) -> bytes:
    at, bit = rng.randrange(len(text)), 1 << rng.randrange(8)
    return text[:at] + bytes([text[at] ^ bit]) + text[at + 1 :]


def other_digit(text: bytes, rng: random.Random) -> bytes:
    at = rng.choice([i for i, byte in enumerate(text) if 48 <= byte < 58])
    digit = rng.choice([byte for byte in range(48, 58) if byte != text[at]])
    return text[:at] + bytes([digit]) + text[at + 1 :]


def lose_line(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def double_line(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def swap_lines(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    one, other = rng.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def cut_off(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


@pytest.mark.parametrize(
    "damage", [flip_bit, other_digit, lose_line, double_line, swap_lines, cut_off]
)
def test_every_damage_is_noticed(
    damage: Callable[[bytes, random.Random], bytes], whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "decisions.jsonl"
    for seed in range(few_or_many(10, 1_000)):
        text = damage(whole, random.Random(seed))
        assert text != whole
        assert "line" in told(path, text), f"seed {seed}"


def test_an_untouched_file_is_verified_packed_or_not(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for text in (whole, gzip.compress(whole)):
        assert told(path, text) == ""
        lines = read(path)[1]
        assert lines.check.state == "unread"
        list(lines)
        assert (lines.check.state, lines.check.end) == ("verified", "closed")
        assert lines.check.lines == len(whole.splitlines())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ls: [*ls[:9], *ls[10:]], "line 10: does not follow line 9: it was changed, or a"),
        (lambda ls: [*ls[:9], ls[8], *ls[9:]], "line 10: repeats line 9"),
        (
            lambda ls: [*ls[:9], ls[10], ls[9], *ls[11:]],
            "line 10: is out of order: line 11 follows line 9",
        ),
        (lambda ls: [*ls[:9], ls[9][:50] + b"\n", *ls[10:]], "line 10: was changed"),
        (lambda ls: [ls[0].replace(b"best", b"beat"), *ls[1:]], "line 1: was changed"),
        (lambda ls: [ls[0].replace(b"v3", b"v2"), *ls[1:]], "line 1: was changed"),
        (lambda ls: [*ls, ls[-1]], "follows the end record"),
        (lambda ls: ls[1:], "line 1: not a decisions header"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    change: Callable[[list[bytes]], list[bytes]], said: str, whole: bytes, tmp_path: Path
) -> None:
    changed = b"".join(change(whole.splitlines(keepends=True)))
    assert said in told(tmp_path / "decisions.jsonl", changed)


def test_the_chain_is_what_the_reference_says(whole: bytes) -> None:
    """A second reading of docs/reference/decisions-file.md, without our code."""
    last = b""
    for line in whole.splitlines():
        body, stated = line[:-2].rsplit(b',"chain":"', 1)
        last = blake2b(last + body, digest_size=16).hexdigest().encode()
        assert stated == last
    assert line.startswith(b'{"end":"closed"')


def test_a_gzipped_file_that_was_cut_is_read_as_far_as_it_is_whole(
    whole: bytes, tmp_path: Path
) -> None:
    packed = gzip.compress(whole)
    assert "is cut off, without an end record" in told(tmp_path / "d.gz", packed[:-100])
