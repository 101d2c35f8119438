"""Counts that people mistype: refused before they fill the memory or run for ever."""

import typing
from collections.abc import Callable, Iterator

import msgspec
import pytest
import typer
from commands import Weft

from weft.cli.main import app
from weft.cli.options import LARGEST_SEED, MOST_SEEDS
from weft.lab.experiment.spec.experiment import Seeds

CHECKED_LATER = {("generate nodes", "gpus"), ("generate nodes", "count")} | {
    ("generate pods", "gpus"),
    ("generate pods", "count"),
}
"""`weft generate` says its own bounds (`test_cli_generate.py`)."""
ANY_NUMBER = {("generate nodes", "seed"), ("generate pods", "seed")}


def commands(group: typer.Typer, path: str = "") -> Iterator[tuple[str, Callable[..., None]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__}".strip(), command.callback
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance, f"{path} {below.name}".strip())


def counts() -> Iterator[tuple[str, str, typing.Any]]:
    """(command, parameter, option) of every option that is a whole number."""
    for name, callback in commands(app):
        for parameter, hint in typing.get_type_hints(callback, include_extras=True).items():
            base, *more = typing.get_args(hint) or (hint,)
            if base in (int, int | None, list[int]) and typing.get_origin(hint) is typing.Annotated:
                yield name, parameter, more[0]


def test_every_count_has_a_bound() -> None:
    found = list(counts())
    assert len(found) > 30
    unbounded = {(name, parameter) for name, parameter, option in found if option.max is None}
    assert unbounded == CHECKED_LATER | ANY_NUMBER


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--seeds", "99999999999", "99999999999 is too large; the maximum is 10,000"),
        ("--seeds", "0", "0 is too small; the minimum is 1"),
        ("--seeds", "-3", "-3 is too small; the minimum is 1"),
        ("--seeds", "1e3", "'1e3' is not a whole number"),
        ("--seeds", "9" * 5_000, "is not a whole number"),
        (
            "--first-seed",
            "9" * 30,
            "9" * 30 + " is too large; the maximum is 9,007,199,254,740,992",
        ),
        ("--jobs", "99999999999", "99999999999 is too large; the maximum is 1,024"),
        ("--compress", "fast", "'fast' is not a number"),
        ("--half-life", "1e300", "1e300 is too large; the maximum is 1,000,000,000"),
    ],
)
def test_a_wrong_number_names_the_option_the_value_and_the_bound(
    weft: Weft, option: str, value: str, problem: str
) -> None:
    said = weft.simulate("--policy", "fgd", option, value)
    assert (said.code, said.out) == (2, "")
    words = " ".join(said.err.split())
    assert f"Invalid value for '{option}': " in words
    assert problem in words


def test_seeds_are_bounded_as_in_a_file() -> None:
    most = {"first": LARGEST_SEED, "count": MOST_SEEDS}
    msgspec.convert(most, Seeds)
    for field, value in most.items():
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.convert(most | {field: value + 1}, Seeds)
