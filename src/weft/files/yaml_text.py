r"""YAML as plain values: the one reader of configurations, manifests and kubeconfigs.

It refuses text that YAML reads otherwise than people mean (a key written twice), invalid text (half
a surrogate pair, as `\\ud83d`), and input without end: aliases that expand to billions of values,
or that contain themselves. Timestamps stay text, as in the Kubernetes API.

PyYAML's own loaders do not fit: the one in C crashes the process on deep nesting, the one in Python
is fifteen times slower. So C parses, and Python builds the values.
"""

from collections.abc import Iterator
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from weft.model import BadInputError
from weft.model.number_text import is_text

try:
    from yaml.cyaml import CParser as _Words  # type: ignore[attr-defined]
except ImportError:  # PyYAML was built without libyaml

    class _Words(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):  # type: ignore[no-redef]
        def __init__(self, stream: str | bytes) -> None:
            yaml.reader.Reader.__init__(self, stream)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)


ALIASED_NODES = 100_000
"""Maximum number of nodes that aliases may add to a document: a few lines of aliases can expand to
billions."""

DEPTH = 100
"""Maximum nesting depth of a document; Kubernetes objects and configurations stay far below."""

_LONGEST_NUMBER = 100


class BrokenYamlError(Exception):
    """Text that is not YAML: `problem`, and `line` counted from 0 (None: unknown)."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


def load(text: str | bytes, first_line: int = 0) -> Any:
    """Parse text with one document, which begins in line `first_line` (from 0) of its file.

    `BadInputError` names the line; `BrokenYamlError` for text that is not YAML.
    """
    try:
        loader = _Loader(text, first_line)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BrokenYamlError(
            error.problem or "invalid YAML", mark.line if mark else None
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except UnicodeError:
        raise BrokenYamlError("it is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BrokenYamlError(" ".join(str(error).split())) from None
    except (AttributeError, LookupError, TypeError):  # PyYAML's, on a !!tag its value can't have
        raise BrokenYamlError("a value is not what its !!tag says") from None


class _Loader(Composer, _Words, SafeConstructor, Resolver):
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own name and kind
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in Resolver.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str | bytes, first_line: int) -> None:
        _Words.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._first, self._depth, self._aliased = first_line, 0, False

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document (None if the text has none), and check aliases before they are
        expanded."""
        root = super().get_single_node()
        if root is not None and self._aliased:
            graph = _Graph(self._first)
            size, depth = graph.measure(root, "")
            # Nodes written out do not count: a dump of a large cluster may be long.
            if size - len(graph.measured) > ALIASED_NODES:
                problem = f"aliases (*) repeat more than {ALIASED_NODES:,} values; write fewer"
                raise BadInputError("", problem)
            if depth > DEPTH:
                raise _too_deep()
        return root

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose one value with all that it contains, within the depth limit."""
        self._aliased = self._aliased or self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > DEPTH:
            raise _too_deep()
        node = super().compose_node(parent, index)
        self._depth -= 1
        assert node is not None
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Compose one scalar; half a surrogate pair is an error."""
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if not (node.value.isascii() or is_text(node.value)):
            line = node.start_mark.line
            raise BrokenYamlError(r"an escape of half a character (\ud800 to \udfff)", line)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping; a key written twice is an error, but merged keys (<<) may be
        overridden."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + self._first + 1
                if key.value in first:
                    problem = f"is written twice (first in line {first[key.value]}); keep one"
                    raise BadInputError(f"line {line}, {key.value}", problem)
                first[key.value] = line
        return node

    def whole_number(self, node: yaml.ScalarNode) -> int:
        """Read a YAML integer of at most 64 bits; Python refuses to print much longer ones."""
        number = 1 << 64
        if len(node.value) <= _LONGEST_NUMBER:
            number = self.construct_yaml_int(node)
        if number.bit_length() > 64:
            line = node.start_mark.line + self._first + 1
            problem = "is a number of more than 64 bits; write a smaller one, or text in quotes"
            raise BadInputError(f"line {line}", problem)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)  # type: ignore[type-var]


class _Graph:
    """The nodes of a document, a graph because of aliases; each is measured once."""

    def __init__(self, first_line: int) -> None:
        self.measured: dict[yaml.Node, tuple[int, int]] = {}
        self._inside: set[yaml.Node] = set()
        self._first = first_line

    def measure(self, node: yaml.Node, place: str) -> tuple[int, int]:
        """Count the nodes below and including `node` with aliases expanded, and the depth they
        nest to. `BadInputError` for an alias to a value that contains it."""
        if node in self._inside:
            error = "an alias (*) to a value from inside that value never ends; write the value out"
            raise BadInputError(place, error)
        if node not in self.measured:
            self._inside.add(node)
            size = depth = 0
            for below, where in self._below(node):
                more, deep = self.measure(below, where)
                size, depth = size + more, max(depth, deep)
            self._inside.remove(node)
            self.measured[node] = size + 1, depth + 1
        return self.measured[node]

    def _below(self, node: yaml.Node) -> Iterator[tuple[yaml.Node, str]]:
        """Yield a node's direct children, each with its place for error messages."""
        if isinstance(node, yaml.SequenceNode):
            place = f"line {node.start_mark.line + self._first + 1}"
            yield from ((item, place) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line = f"line {key.start_mark.line + self._first + 1}"
                yield key, line
                yield value, f"{line}, {key.value}" if isinstance(key, yaml.ScalarNode) else line


def _too_deep() -> BadInputError:
    problem = (
        f"nests more than {DEPTH} levels deep, or an alias (*) never ends; write the value out"
    )
    return BadInputError("", problem)
