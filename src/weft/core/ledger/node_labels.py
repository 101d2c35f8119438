"""Labels and taints of all nodes as columns, so that a rule is evaluated once per label value
instead of once per node: a pod may have thousands of rules. Columns are built once per layout, each
when a pod first refers to its label."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weft.model import Constraints, Node, Preference, Requirement, Taint, Term
from weft.model.number_text import whole_number

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_NAME = "metadata.name"
WITHOUT = 1
"""Set with only the domain of nodes that lack the label, in the form of `as_bits`."""
_SETS_KEPT = 256
"""Maximum number of sets of a label's values whose node rows are cached."""


class LabelColumn:
    """Values of a label, numbered from 1: each node's number, [N] (0: no label), and the values as
    integers where they are numbers. `tells_nodes_apart`: each node has a different value;
    `is_everywhere`: each node has the label; `fewest_nodes`: the number of nodes of the rarest
    value."""

    def __init__(self, values: Sequence[str | None]) -> None:
        """Number the values of the nodes; None for a node without the label."""
        numbers: dict[str, int] = {}
        of_node = [
            0 if value is None else numbers.setdefault(value, len(numbers) + 1) for value in values
        ]
        self.numbers, self.values = numbers, list(numbers)
        self.of_node: Ints = np.array(of_node, dtype=np.int64)
        self.whole = [None, *map(_whole, numbers)]
        self.tells_nodes_apart = len(self.values) == len(of_node)
        self.is_everywhere = 0 not in of_node
        self.count = len(numbers) + 1
        self.everywhere = as_bits(np.ones(self.count, dtype=np.bool_))
        sizes = np.bincount(self.of_node, minlength=self.count)[1:].tolist()
        self.fewest_nodes = min(sizes, default=0)
        self._rows: dict[int, Ints] = {}

    def rows_in(self, domains: int) -> Ints:
        """Return the rows of nodes in these domains (a set from `as_bits`), in order; cached,
        because the same few sets recur."""
        rows = self._rows.get(domains)
        if rows is None:
            if len(self._rows) >= _SETS_KEPT:
                self._rows.clear()
            rows = self._rows[domains] = self.mask_of(domains).take(self.of_node).nonzero()[0]
        return rows

    def mask_of(self, domains: int) -> Bools:
        """Return a mask of these domains, indexed by number."""
        return np.frombuffer(domains.to_bytes(self.count, "little"), dtype=np.bool_)


def as_bits(domains: Bools) -> int:
    """Encode a set of domains as the bytes of one integer: sets are small, and integer arithmetic
    is faster than NumPy calls."""
    return int.from_bytes(domains.tobytes(), "little")


class NodeLabels:
    """Columns of the nodes' labels, and of masks of the nodes that selectors and affinities
    accept."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._keys = {key for node in nodes for key in node.labels}
        self._labels: dict[str, LabelColumn] = {}
        self._fields: LabelColumn | None = None

    def accepts_labels(self, constraints: Constraints) -> Bools:
        """Return a mask of the nodes that nodeSelector and required node affinity accept, [N]."""
        accepted = np.ones(len(self._nodes), dtype=np.bool_)
        for key, value in constraints.selector:
            accepted &= self._matches(Requirement(key, "In", (value,)))
            if not accepted.any():
                return accepted
        if constraints.affinity is not None:
            accepted &= self.any_of(constraints.affinity)
        return accepted

    def accepts_volumes(self, constraints: Constraints) -> Bools:
        """Return a mask of the nodes that the node affinity of every bound volume accepts, [N]."""
        accepted = np.ones(len(self._nodes), dtype=np.bool_)
        for terms in constraints.volumes:
            accepted &= self.any_of(terms)
        return accepted

    def domains(self, key: str) -> LabelColumn:
        """Return the column of this label, even if no node has it."""
        return self._label(key) or self._of_nobody

    @functools.cached_property
    def _of_nobody(self) -> LabelColumn:
        """Return the column of a label that no node has."""
        return LabelColumn([None] * len(self._nodes))

    def preferred(self, terms: Sequence[Preference]) -> Ints:
        """Return each node's sum of the weights of the preferred terms that match, [N]."""
        total = np.zeros(len(self._nodes), dtype=np.int64)
        for preference in terms:
            total += preference.weight * self._satisfy(preference.term)
        return total

    def any_of(self, terms: Sequence[Term]) -> Bools:
        """Return a mask of the nodes that at least one of these terms matches, [N]."""
        found = np.zeros(len(self._nodes), dtype=np.bool_)
        for term in terms:
            found |= self._satisfy(term)
            if found.all():
                break
        return found

    def _satisfy(self, term: Term) -> Bools:
        if not term.labels and not term.fields:
            return np.zeros(len(self._nodes), dtype=np.bool_)
        good = np.ones(len(self._nodes), dtype=np.bool_)
        for requirements, is_field in ((term.labels, False), (term.fields, True)):
            for requirement in requirements:
                good &= self._matches(requirement, is_field=is_field)
                if not good.any():
                    return good
        return good

    def _matches(self, requirement: Requirement, *, is_field: bool = False) -> Bools | np.bool_:
        """Return `Requirement.matches` for each node, [N]; a single answer if no node has the
        label."""
        column = self._field(requirement.key) if is_field else self._label(requirement.key)
        if column is None:
            return np.bool_(requirement.matches({}))
        numbers = column.numbers
        by_value = np.zeros(len(numbers) + 1, dtype=np.bool_)
        match requirement.operator:
            case "In" | "NotIn":
                for value in requirement.values:
                    if (number := numbers.get(value)) is not None:
                        by_value[number] = True
                if requirement.operator == "NotIn":
                    by_value = ~by_value
            case "Exists" | "DoesNotExist":
                by_value[1:] = True
                if requirement.operator == "DoesNotExist":
                    by_value = ~by_value
            case "Gt" | "Lt":
                by_value[:] = _compared(requirement, column.whole)
        return np.asarray(by_value.take(column.of_node))

    def _label(self, key: str) -> LabelColumn | None:
        if key not in self._keys:
            return None
        if key not in self._labels:
            self._labels[key] = LabelColumn([node.labels.get(key) for node in self._nodes])
        return self._labels[key]

    def _field(self, key: str) -> LabelColumn | None:
        if key != _NAME:
            return None
        if self._fields is None:
            self._fields = LabelColumn([node.name for node in self._nodes])
        return self._fields


def _whole(value: str | None) -> int | None:
    try:
        return whole_number(value or "")
    except ValueError:
        return None


def _compared(requirement: Requirement, values: Sequence[int | None]) -> list[bool]:
    bound = _whole(requirement.values[0]) if requirement.values else None
    if bound is None:
        return [False] * len(values)
    if requirement.operator == "Gt":
        return [value is not None and value > bound for value in values]
    return [value is not None and value < bound for value in values]


class NodeTaints:
    """The distinct sets of taints that nodes have, and the number of each node's set, [N]."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        numbers: dict[tuple[Taint, ...], int] = {}
        of_node = [numbers.setdefault(node.taints, len(numbers)) for node in nodes]
        self.sets, self.of_node = list(numbers), np.array(of_node, dtype=np.int64)
        self.are_disliked = any(not taint.hard for taints in self.sets for taint in taints)
