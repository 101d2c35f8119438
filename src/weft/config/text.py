"""YAML as plain values, refusing what people mean otherwise than it is read."""

from typing import Any

import yaml

from weft.model import BadInputError

_DEEPEST = 50  # the form itself nests 5 deep; the rest are a policy's options


class _Loader(yaml.SafeLoader):
    """Refuses a key written twice (the later one would win silently), and endless aliases."""

    def get_single_node(self) -> yaml.Node | None:
        """The document before it becomes values."""
        root = super().get_single_node()
        if root is not None:
            _look_at(root, 0)
        return root


def load(text: bytes, where: str) -> Any:
    """The one document of this text; `where` names it in errors."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise _too_deep(where) from None
    except BadInputError as error:
        raise BadInputError(
            f"{where}: {error.where}" if error.where else where, error.what
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInputError(where, f"is no YAML: {' '.join(str(error).split())}") from error
    except (AttributeError, LookupError, TypeError) as error:  # PyYAML's own, on a wrong !!tag
        raise BadInputError(where, "is no YAML: a value is not what its !!tag says") from error


def _look_at(node: yaml.Node, depth: int) -> None:
    """One value and what is in it. Merged keys (<<) may be overridden, as YAML has it."""
    if depth > _DEEPEST:
        raise _too_deep("")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _look_at(item, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in first:
                    what = f"is written twice (first in line {first[key.value]}); keep one"
                    raise BadInputError(f"line {line}, {key.value}", what)
                first[key.value] = line
            _look_at(value, depth + 1)


def _too_deep(where: str) -> BadInputError:
    what = f"nests more than {_DEEPEST} levels deep, or an alias (*) never ends; write it out"
    return BadInputError(where, what)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    """As YAML has it, up to 64 bits: Python refuses to print the longest."""
    number = loader.construct_yaml_int(node)
    if number.bit_length() > 64:
        line = node.start_mark.line + 1
        raise BadInputError(f"line {line}", "is a number of more than 64 bits; write a smaller one")
    return int(number)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
