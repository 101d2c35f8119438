"""Rules on labels asked by columns are answered as node by node."""

from random import Random

from long_form import few_or_many

from weft.core.ledger.node_labels import NodeLabels, NodeTaints
from weft.model import Constraints, Node, Preference, Requirement, Taint, Term

KEYS = ("zone", "size", "metadata.name", "nobody-has")
VALUES = ("a", "b", "1", "20", "-3", "1_000", " 7", "", "99999999999999999999")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near")


def some_node(dice: Random, number: int) -> Node:
    labels = {key: dice.choice(VALUES) for key in KEYS[:2] if dice.random() < 0.7}
    taints = (Taint("a", dice.choice(["NoSchedule", "PreferNoSchedule"])),)
    kept = taints if dice.random() < 0.3 else ()
    return Node(f"{VALUES[number % len(VALUES)]}{number // 3}", labels=labels, taints=kept)


def some_term(dice: Random) -> Term:
    def some() -> tuple[Requirement, ...]:
        return tuple(
            Requirement(
                dice.choice(KEYS),
                dice.choice(OPERATORS),
                tuple(dice.sample(VALUES, dice.randint(0, 3))),
            )
            for _ in range(dice.choice([0, 1, 1, 2]))
        )

    return Term(some(), some() if dice.random() < 0.3 else ())


def test_columns_answer_as_node_by_node():
    some_fit = 0
    for seed in range(few_or_many(400, 5_000)):
        dice = Random(seed)
        nodes = [some_node(dice, number) for number in range(dice.randint(0, 6))]
        terms = tuple(some_term(dice) for _ in range(dice.randint(0, 3)))
        asked = Constraints(
            selector=(("zone", "a"),) if dice.random() < 0.3 else (),
            affinity=dice.choice([None, terms]),
            volumes=dice.choice([(), (terms, (some_term(dice),))]),
        )
        preferred = [Preference(dice.randint(1, 100), term) for term in terms]
        columns = NodeLabels(nodes)
        by_labels = [asked.accepts_labels(node.name, node.labels) for node in nodes]
        assert columns.accepts_labels(asked).tolist() == by_labels
        by_volumes = [asked.accepts_volumes(node.name, node.labels) for node in nodes]
        assert columns.accepts_volumes(asked).tolist() == by_volumes
        wishes = [
            sum(wish.weight for wish in preferred if wish.term.matches(node.name, node.labels))
            for node in nodes
        ]
        assert columns.preferred(preferred).tolist() == wishes
        taints = NodeTaints(nodes)
        assert [taints.sets[at] for at in taints.of_node.tolist()] == [n.taints for n in nodes]
        some_fit += any(by_labels) and not all(by_labels)
    assert some_fit > 10
