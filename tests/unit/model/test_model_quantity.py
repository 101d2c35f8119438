import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model import BadInputError, parse_cpu_milli, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (2, 2),
        ("2", 2),
        (" 2 ", 2),
        ("4Gi", 4 * 2**30),
        ("4G", 4 * 10**9),
        ("16k", 16_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        (".5", 1),
        ("500m", 1),
        ("1500m", 2),
        ("1n", 1),
        ("0", 0),
        ("+3", 3),
        (1.5, 2),
        ("1.5Ki", 1536),
    ],
)
def test_quantities_are_whole_numbers_rounded_up(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "milli"), [("100m", 100), ("1", 1000), (0.5, 500), ("1u", 1), ("2k", 2_000_000)]
)
def test_cpu_is_in_thousandths_of_a_core(text, milli):
    assert parse_cpu_milli(text) == milli


numbers = st.from_regex(r"[0-9]{1,17}", fullmatch=True, alphabet="0123456789")
suffixes = st.sampled_from(["", "m", "k", "M", "Gi", "Ti", "E", "Ei", "u", "e3"])


@given(number=numbers | st.integers(0, 2**63), suffix=suffixes)
def test_the_short_way_and_the_long_way_agree(number, suffix):
    """A leading plus takes the long way."""
    text = f"{number}{suffix}"
    assert parse_quantity(text) == parse_quantity(f"+{text}")
    assert parse_cpu_milli(text) == parse_cpu_milli(f"+{text}")
    if isinstance(number, int):
        assert parse_quantity(number) == parse_quantity(f"+{number}")


@pytest.mark.parametrize("text", ["", "abc", "1x", "1 Gi", "Gi", "1ki", "0x10", "1e", "inf", "٣"])
@pytest.mark.parametrize("parse", [parse_quantity, parse_cpu_milli])
def test_what_is_no_quantity_is_named_with_its_place(parse, text):
    with pytest.raises(BadInputError, match="not a Kubernetes quantity") as caught:
        parse(text, "spec.x")
    assert caught.value.where == "spec.x"
    assert repr(text) in str(caught.value)


def test_true_is_no_number():
    with pytest.raises(BadInputError):
        parse_quantity(True)


@pytest.mark.parametrize("parse", [parse_quantity, parse_cpu_milli])
def test_negative_quantities_are_refused(parse):
    with pytest.raises(BadInputError, match="negative"):
        parse("-1")


def test_an_error_without_a_place_is_only_what_is_wrong():
    assert str(BadInputError("", "broken")) == "broken"
    assert str(BadInputError("a.yaml", "broken")) == "a.yaml: broken"
