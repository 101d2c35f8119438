"""Base of all sections of the configuration file."""

from typing import Annotated

from msgspec import Meta

DAY_S = 86_400

# `refused` and `above` are told instead of the bound itself; {} is the value.
Port = Annotated[
    int,
    Meta(
        ge=0, le=65_535, extra={"refused": "{} is no port; write 1 to 65535, or 0 for a free one"}
    ),
]
