"""Tables at any width: nothing is cut, nothing is lost, and lines stay within it where they can."""

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.cli.text_table import TableColumn, TextTable

WORD = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1, max_size=40)
TEXT = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> TextTable:
    texts, numbers = draw(st.integers(1, 4)), draw(st.integers(0, 12))
    columns = [TableColumn(draw(TEXT)) for _ in range(texts)]
    columns += [TableColumn(draw(TEXT), right=True) for _ in range(numbers)]
    table = TextTable(columns)
    for _ in range(draw(st.integers(1, 5))):
        table.add_row(*(draw(TEXT) for _ in range(texts)), *(draw(WORD) for _ in range(numbers)))
    return table


@settings(max_examples=few_or_many(25, 2000), deadline=None)
@given(tables(), st.integers(20, 200))
def test_every_word_is_whole_and_lines_fit_where_words_do(table: TextTable, width: int) -> None:
    lines = [line for line, _ in table.lines(width)]
    words = [word for line in lines for word in line.split()]
    for column, *cells in zip(table.columns, *table.rows, strict=True):
        for text in (column.header, *cells):
            assert [word for word in text.split() if word not in words] == []
    longest = max(len(word) for word in words)
    headers = max(len(column.header) for column in table.columns)
    if longest + headers + 4 <= width:  # else even a row at a time is wider
        assert max(map(len, lines)) <= width


@settings(max_examples=few_or_many(10, 500), deadline=None)
@given(tables())
def test_without_a_width_a_row_is_a_line(table: TextTable) -> None:
    header, *rows = [line for line, _ in table.lines(None)]
    assert header.split() == " ".join(column.header for column in table.columns).split()
    assert [row.split() for row in rows] == [" ".join(row).split() for row in table.rows]


def drawn(headers: str, rows: list[str], width: int) -> str:
    columns = [TableColumn(name.lstrip(">"), name[0] == ">") for name in headers.split("|")]
    table = TextTable(columns)
    for row in rows:
        table.add_row(*row.split("|"))
    return "\n".join(line for line, _ in table.lines(width))


def test_headers_wrap_before_anything_else() -> None:
    assert drawn("policy|>failed pods|why", ["fgd|12|too small"], 25) == (
        "        failed\npolicy    pods  why\nfgd         12  too small"
    )


def test_texts_wrap_between_words_and_numbers_never() -> None:
    assert drawn("a|why|>n", ["x|one two three|1 ± 2"], 17) == (
        "a  why          n\nx  one two  1 ± 2\n   three"
    )


def test_what_rows_share_becomes_a_heading() -> None:
    rows = ["a-node-of-a-long-name|0|1", "a-node-of-a-long-name|1|2"]
    assert drawn("node|>gpu|>used", rows, 28) == (
        "node a-node-of-a-long-name\ngpu  used\n  0     1\n  1     2"
    )


def test_numbers_that_do_not_fit_follow_in_a_second_table() -> None:
    assert drawn("p|>first|>second|>third", ["fgd|1|2|3", "cbp|4|5|6"], 18) == (
        "p    first  second\nfgd      1       2\ncbp      4       5\n"
        "\n"
        "p    third\nfgd      3\ncbp      6"
    )


def test_names_too_wide_for_that_get_a_block_each() -> None:
    name = "a-policy:with=options,and=more"
    assert drawn("policy|>n|>long header", [f"{name}|1|2"], 40) == (
        f"policy {name}\n  n            1\n  long header  2"
    )


def test_what_would_give_a_terminal_orders_is_shown_as_text() -> None:
    assert drawn("name|>n", ["\x1b[31mred|1"], 40).splitlines()[1] == "\\x1b[31mred  1"
