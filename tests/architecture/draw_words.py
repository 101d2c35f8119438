"""Draws docstrings and messages of `src/weft` by a seed, to be read by somebody new to the code:
`make words SEED=1`. Counts function docstrings that open with an article or a preposition."""

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "weft"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ARTICLES = {"a", "an", "the", "this", "that", "these", "those", "each", "every", "all", "any"}
PREPOSITIONS = {"about", "across", "after", "against", "among", "as", "at", "before", "behind"}
PREPOSITIONS |= {"between", "beyond", "but", "by", "during", "for", "from", "in", "into", "like"}
PREPOSITIONS |= {"of", "on", "onto", "out", "over", "per", "since", "through", "to", "under"}
PREPOSITIONS |= {"until", "up", "upon", "with", "within", "without"}
OPENERS = ARTICLES | PREPOSITIONS


def docstrings(kinds: tuple[type[ast.AST], ...] = DOCUMENTED) -> Iterator[tuple[str, str]]:
    """Place and text of every docstring."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and isinstance(node, kinds):
                text = ast.get_docstring(node)
                if text:
                    yield place(path, node.body[0], getattr(node, "name", "")), text


def messages() -> Iterator[tuple[str, str]]:
    """Place and text of every string of four words or more that is not a docstring."""
    for path, tree in trees():
        inside = {id(part) for node in strings(tree) for part in ast.walk(node) if part is not node}
        for node in strings(tree):
            text = shown(node)
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"{[^}]*}", "", text))
            if id(node) not in inside and len(words) >= 4 and " " in text.strip():
                yield place(path, node, ""), text


def strings(tree: ast.AST) -> list[ast.Constant | ast.JoinedStr]:
    """Return the strings of a file that are neither docstrings nor bare expressions."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if id(node) not in bare
    ]


def shown(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a string with its values as the code names them."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(
        "{" + ast.unparse(part.value) + "}"
        if isinstance(part, ast.FormattedValue)
        else ast.literal_eval(part)
        for part in node.values
    )


def opens_weakly(text: str) -> bool:
    """Return whether a docstring opens with an article or a preposition."""
    return re.split(r"\W", text.strip(), maxsplit=1)[0].lower() in OPENERS


def weak_share() -> float:
    """Return the share of function docstrings that open with an article or a preposition."""
    texts = [text for _, text in docstrings(FUNCTIONS)]
    return sum(map(opens_weakly, texts)) / len(texts)


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def place(path: Path, node: ast.AST, name: str) -> str:
    return f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)} {name}".rstrip()


def main() -> None:
    """Print 200 docstrings and 100 messages drawn by `--seed`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    draw = random.Random(parser.parse_args().seed)
    for kind, found, count in (("docstring", docstrings(), 200), ("message", messages(), 100)):
        for number, (where, text) in enumerate(draw.sample(list(found), count), start=1):
            shown_text = text.replace("\n", "\n    ")
            sys.stdout.write(f"{kind} {number}  {where}\n    {shown_text}\n")
    sys.stdout.write(f"{weak_share():.1%} of function docstrings open weakly\n")


if __name__ == "__main__":
    main()
