"""`weft defrag plan`: who may be moved, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from dialect_pods import ASKING, node, pod

from weft.cluster.snapshot.movable_pods import selects
from weft.kube.pods import LabelSelector, SelectorRequirement
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY

OWNER = {"kind": "ReplicaSet", "name": "r", "controller": True}
LATENCY_CRITICAL = {"weft.dev/class": "latency-critical"}


def _bound(name: str, where: str, owner: dict[str, Any] | None = OWNER, **more: str) -> Any:
    """A pod with half of the one card of its node, placed by Weft."""
    made = pod(name, ASKING["weft"] | {"limits": {"weft.dev/gpu-memory": "8000"}}, node=where)
    shares = [[0, 0, 8000, 0, ""]]
    text = json.dumps(
        {"pod": f"uid-{name}", "node": where, "shares": shares}, separators=(",", ":")
    )
    made["metadata"]["annotations"] = {PLACEMENT: text, PLACEMENT_COPY: text} | more
    made["metadata"]["ownerReferences"] = [owner] if owner else []
    made["metadata"]["labels"] = {"app": name}
    return made


def _plan(weft: Weft, *items: Any) -> Any:
    path, state = weft.folder / "objects.json", weft.folder / "state.json"
    path.write_text(json.dumps({"items": [node("a", 1), node("b", 1), *items]}))
    assert weft("snapshot", state, "--from", path).code == 0
    said = weft("defrag", "plan", "--gpus", 1, "--snapshot", state, "-o", "json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def _budget(allowed: int) -> Any:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "ml"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": allowed},
    }


def test_the_pod_that_may_go_is_put_beside_the_one_that_may_not(weft: Weft) -> None:
    found = _plan(weft, _bound("one", "a", **LATENCY_CRITICAL), _bound("two", "b"))
    (move,) = found["plan"]["moves"]
    assert move == {"uid": "uid-two", "from_node": "b", "to_node": "a"}
    assert found["plan"]["node"] == "b"
    assert found["plan"]["lost_gpu_s"] >= 0
    assert found["stay"] == {"latency-critical": 1}


@pytest.mark.parametrize(
    ("items", "stay"),
    [
        ([_bound("one", "a", None), _bound("two", "b", None)], {"no controller": 2}),
        (
            [
                _bound(name, where, OWNER | {"kind": "DaemonSet"})
                for name, where in (("one", "a"), ("two", "b"))
            ],
            {"tied to its node": 2},
        ),
        ([_bound("one", "a"), _bound("two", "b"), _budget(0)], {}),
    ],
)
def test_pods_that_must_stay_stay(weft: Weft, items: list[Any], stay: dict[str, int]) -> None:
    found = _plan(weft, *items)
    assert found["plan"] is None
    assert found["searched_all"]
    assert found["stay"] == stay


def test_a_budget_that_lets_one_go_lets_one_go(weft: Weft) -> None:
    found = _plan(weft, _bound("one", "a"), _bound("two", "b"), _budget(1))
    assert len(found["plan"]["moves"]) == 1


def test_the_table_names_moves_and_cost_and_wrong_wishes_are_refused(weft: Weft) -> None:
    _plan(weft, _bound("one", "a"), _bound("two", "b"))
    state: Path = weft.folder / "state.json"
    said = weft("defrag", "plan", "--gpus", 1, "--snapshot", state)
    assert said.out.split()[:3] == ["move", "from", "to"]
    assert "Cost: 1 pod, " in said.out
    fits = weft("defrag", "plan", "--gpus", 1, "--gpu-milli", 100, "--snapshot", state)
    assert "no pod has to be moved" in fits.out
    neither = weft("defrag", "plan", "--snapshot", state)
    assert "specify exactly one of a pending pod" in neither.err
    nobody = weft("defrag", "plan", "--pod", "ml/x", "--snapshot", state)
    assert "no pod 'ml/x' is pending" in nobody.err


@pytest.mark.parametrize(
    ("operator", "values", "taken"),
    [
        ("In", ["x"], True),
        ("In", ["y"], False),
        ("NotIn", ["x"], False),
        ("NotIn", ["y"], True),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_selectors_take_what_they_say(operator: str, values: list[str] | None, taken: bool) -> None:
    rule = SelectorRequirement("app", operator, values)
    assert selects(LabelSelector(match_expressions=[rule]), {"app": "x"}) is taken
    assert selects(LabelSelector(), {}) is True
    assert selects(None, {"app": "x"}) is False
    assert selects(LabelSelector(match_labels={"app": "y"}), {"app": "x"}) is False


def test_without_the_disruption_budgets_there_is_no_plan(weft: Weft) -> None:
    _plan(weft, _bound("one", "a"))
    state: Path = weft.folder / "state.json"
    state.write_text(
        json.dumps(json.loads(state.read_text()) | {"unread": ["PodDisruptionBudget"]})
    )
    said = weft("defrag", "plan", "--gpus", 1, "--snapshot", state)
    assert (said.code, "PodDisruptionBudgets: could not be read" in said.err) == (1, True)
