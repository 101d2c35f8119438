"""Reads files of Weft 0.1.0, in which some names differ from today's.

For one release: 0.2 reads the former names and writes today's, 0.3 reads only today's.
"""

from collections.abc import Mapping
from typing import Any

FREE = frozenset({"labels", "extended", "options", "env", "scores", "features"})
"""Fields whose keys are names given by users, which are never renamed."""


def with_todays_names(document: Any, names: Mapping[str, str]) -> Any:
    """Return the parsed JSON with its fields renamed by `names` (former → today's), at every depth.

    The values of fields in `FREE` are left unchanged.
    """
    if isinstance(document, list):
        return [with_todays_names(item, names) for item in document]
    if not isinstance(document, dict):
        return document
    return todays_fields(
        {
            name: value if name in FREE else with_todays_names(value, names)
            for name, value in document.items()
        },
        names,
    )


def todays_fields(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return these fields renamed by `names`, with their values unchanged."""
    return {names.get(name, name): value for name, value in fields.items()}
