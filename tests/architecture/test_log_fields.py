"""Whoever logs about a pod or a node gives it as a field, not in the text alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "weft"
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAMES_ONE = re.compile(r"\b(pod|node) %s|%s/%s")
OTHERS = {
    "lease %s/%s: %s",
    "waiting for the lease %s/%s",
    "%s/%s: key %s %s: %s",
    "the condition of PodGroup %s/%s is written again later: %s",
    "the status of PodGroup %s/%s is written again later: %s",
}
"""Constructors of records of Leases and ConfigMaps, and what is said of PodGroups."""
_ELSEWHERE = ("lab", "testing")


def _calls() -> Iterator[tuple[str, str, bool]]:
    """Each logging call that names a pod or a node: where, its text, and whether it has `extra`."""
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in _ELSEWHERE:
            continue
        tree = ast.parse(path.read_text())
        texts = {
            (target.id, node.lineno): node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            of = call.func.value
            if not (isinstance(of, ast.Name) and of.id == "log" and call.func.attr in LOGGED):
                continue
            text = call.args[1 if call.func.attr == "log" else 0]
            said = text.value if isinstance(text, ast.Constant) else ""
            if isinstance(text, ast.Name):  # a name given just before
                lines = [line for name, line in texts if name == text.id and line < call.lineno]
                said = texts[text.id, max(lines)] if lines else ""
            given = any(keyword.arg == "extra" for keyword in call.keywords)
            yield f"{path.relative_to(SOURCE)}:{call.lineno}", str(said), given


def test_whoever_logs_about_a_pod_or_node_gives_it_as_a_field() -> None:
    calls = list(_calls())
    named = [call for call in calls if NAMES_ONE.search(call[1]) and call[1] not in OTHERS]
    assert len(named) > 12
    assert [(where, text) for where, text, given in named if not given] == []
