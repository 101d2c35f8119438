"""Basics of the configuration file's sections, such as the type of ports."""

from typing import Annotated

from msgspec import Meta

DAY_S = 86_400

# Error messages use `refused` and `above` instead of the bound; {} is the value.
Port = Annotated[
    int,
    Meta(
        ge=0,
        le=65_535,
        extra={"refused": "{} is not a port; write 1 to 65535, or 0 for a free one"},
    ),
]
