"""What all sections of the configuration file have in common."""

from typing import Annotated

import msgspec
from msgspec import Meta

DAY_S = 86_400

# `refused` and `above` are told instead of the bound itself; {} is the value.
Port = Annotated[
    int,
    Meta(
        ge=0, le=65_535, extra={"refused": "{} is no port; write 1 to 65535, or 0 for a free one"}
    ),
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base: snake_case here, camelCase in the file; a field nobody knows is an error."""
