"""`weft policies`, and the registry with third-party plugins for other commands."""

import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import TYPE_CHECKING

from weft.cli.options import Output
from weft.cli.output import ListOutput, json_text, print_table, print_warning, table_with

if TYPE_CHECKING:
    from weft.core.record.policy_files import PolicyRegistry


_said: set[str] = set()
"""Problems of plugins that were already printed in this process, as commands create several
registries."""


def registry() -> "PolicyRegistry":
    """Create a registry with Weft's policies and those of installed packages (entry points
    `weft.policies`).

    A plugin that cannot be loaded is named in a warning on stderr, once, and left out."""
    from weft.core.framework.registry import register_entry_points
    from weft.core.policies.catalog import BUILT_IN
    from weft.core.record.policy_files import PolicyRegistry

    policies = PolicyRegistry()
    for policy in BUILT_IN:
        policies.register(policy)
    for problem in register_entry_points(policies, _installed(tuple(sys.path))):
        if problem not in _said:
            print_warning(problem)
        _said.add(problem)
    return policies


@cache
def _installed(_: tuple[str, ...]) -> EntryPoints:
    """Return the plugins of all packages on this path; cached, since it reads files of every
    package."""
    return entry_points(group="weft.policies")


def policies(output: Output = ListOutput.table) -> None:
    """List the available policies, with warnings for unsafe ones."""
    described = registry().describe()
    if output is ListOutput.json:
        print(json_text(described))
        return
    table = table_with("|")
    for item in described:
        table.add_row(item.name, item.summary)
        if item.unsafe:
            table.add_row("", f"unsafe: {item.unsafe}")
    print_table(table)
