"""Reads what Weft 0.1.0 wrote under names that have changed since.

For one release: 0.2 reads the former names and writes today's, 0.3 reads today's alone.
"""

from collections.abc import Mapping
from typing import Any

FREE = frozenset({"labels", "extended", "options", "env", "scores", "features"})
"""Fields whose keys are other people's words, not ours."""


def with_todays_names(document: Any, names: Mapping[str, str]) -> Any:
    """Return the parsed JSON with every field of a former name (`names`: former → today's) under
    today's.

    What stands in a field of `FREE` stays as it is.
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
    """Return these fields alone, whatever stands in them, with those of a former name under
    today's."""
    return {names.get(name, name): value for name, value in fields.items()}
