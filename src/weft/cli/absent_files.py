"""Files that a cluster's configuration names but that do not exist on this machine."""

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from weft.cli.output import print_warning

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration


def without_absent(config: "Configuration") -> "Configuration":
    """Return a cluster's configuration without files that cannot be read here, with a warning on
    stderr.

    The configuration names files in the scheduler's container, which need not exist on this
    machine."""
    from weft.host.prediction_files import OWN_FILES

    settings = config.interference
    named = {field: getattr(settings, field.partition(".")[2]) for field in OWN_FILES}
    absent = {field: name for field, name in named.items() if name and not os.access(name, os.R_OK)}
    if not absent:
        return config
    files = " and ".join(f"{field} {name}" for field, name in absent.items())
    are, they = ("are", "they predict") if len(absent) > 1 else ("is", "it predicts")
    print_warning(
        f"{files} of the cluster's configuration {are} not on this machine: ignored, with "
        f"what {they}"
    )
    unnamed = {field.partition(".")[2]: "" for field in absent}
    return replace(config, interference=replace(settings, **unnamed))
