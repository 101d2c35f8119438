"""`weft policies`, and the registry with third-party plugins that other commands use."""

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from weft.cli.options import Output
from weft.cli.output import ListOutput, json_text

if TYPE_CHECKING:
    from weft.core.framework.registry import Registry


def registry() -> "Registry":
    """All policies: Weft's own and those of installed packages (entry points `weft.core.policies`).

    A plugin that cannot be loaded is named on stderr and left out; the others work.
    """
    from weft.core.framework.registry import register_entry_points
    from weft.core.policies.catalog import built_in

    policies = built_in()
    for problem in register_entry_points(policies, entry_points(group="weft.policies")):
        print(f"weft: warning: {problem}", file=sys.stderr)
    return policies


def policies(output: Output = ListOutput.table) -> None:
    """List the policies there are, and why one is unsafe where it is."""
    described = registry().describe()
    if output is ListOutput.json:
        print(json_text(described))
        return
    width = max(len(item.name) for item in described)
    for item in described:
        print(f"{item.name:<{width}}  {item.summary}")
        if item.unsafe:
            print(f"{'':<{width}}  unsafe: {item.unsafe}")
