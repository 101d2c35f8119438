"""The one YAML reader: what it refuses, whoever asks, and that it is never endless."""

import time
from pathlib import Path

import pytest

from weft.cluster.config.read import decode
from weft.files.yaml_text import DEPTH, BrokenYamlError, load
from weft.kube.config import read
from weft.model import BadInputError

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"


def bomb(levels: int = 12, width: int = 9) -> str:
    """Lists of `width` aliases to the list above."""
    each = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels + 1)]
    return "\n".join(["a0: &a0 [x]", *each, ""])


def merges(levels: int = 12, width: int = 9) -> str:
    each = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join(["a0: &a0 {x: 1}", *each, ""])


HOSTILE = {
    "aliases": bomb(),
    "merges": merges(),
    "an endless alias": "a: &a [*a]\n",
    "depth": "a: " + "[" * 100_000,
    "mappings": "a: " + "{a: " * 100_000,
    "half a character": 'a: "\\ud83d"\n',
    "a long number": "a: 0x" + "f" * 1_000_000,
    "sexagesimal": "a: 1" + ":59" * 200_000,
    "control": "a: \x01\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_at_once_wherever_it_stands(text: str, tmp_path: Path) -> None:
    began = time.process_time()
    with pytest.raises((BadInputError, BrokenYamlError)):
        load(text)
    with pytest.raises(BadInputError, match=r"weft\.yaml"):
        decode(f"{HEAD}{text}".encode(), "weft.yaml")
    path = tmp_path / "config"
    path.write_text(f"users: []\n{text}")
    with pytest.raises(BadInputError, match="is not a kubeconfig"):
        read([path])
    assert time.process_time() - began < 2


def test_lines_are_those_of_the_file() -> None:
    with pytest.raises(BadInputError, match=r"line 43, a: is written twice \(first in line 42\)"):
        load("b: 1\na: 1\na: 2\n", 40)
    with pytest.raises(BrokenYamlError) as broken:
        load("a: 1\nb: [\n", 40)
    assert broken.value.line == 2, "in the text itself"


def test_depth_of_what_is_really_written_is_enough() -> None:
    depth = DEPTH - 2
    found = load("[" * depth + "]" * depth)
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


def test_what_it_reads() -> None:
    text = "a: 2020-01-01\nb: 0o17\nc: yes\nd: [1, 1.5, ~, 'x']\ne: '😀'\nf: 0x1F\n"
    assert load(text.encode()) == {
        "a": "2020-01-01",
        "b": "0o17",
        "c": True,
        "d": [1, 1.5, None, "x"],
        "e": "😀",
        "f": 31,
    }
    assert load("") is None
