"""Abilities of container runtimes for NRI plugins, by the name and version that they tell.

Versions are those as released; of a runtime that is not named here nothing is taken for granted.
"""

import re
from collections.abc import Mapping

_CDI_FROM = {"containerd": (2, 1), "cri-o": (1, 34)}
_LAST_CDI_FROM = {"containerd": (2, 2)}
_VALIDATORS_FROM = {"containerd": (2, 2)}


def takes_cdi(runtime: str) -> bool:
    """True if this runtime (`containerd v2.2.9`) gives containers what the CDI names of a plugin
    bring: earlier ones drop such names without a word."""
    return is_from(_CDI_FROM, *runtime.partition(" ")[::2])


def puts_cdi_last(runtime: str) -> bool:
    """True if the environment of a plugin's CDI devices goes before the image's and the pod's."""
    return is_from(_LAST_CDI_FROM, *runtime.partition(" ")[::2])


def has_validators(runtime: str) -> bool:
    """True if it is certain that plugins may validate."""
    return is_from(_VALIDATORS_FROM, *runtime.partition(" ")[::2])


def is_from(first: Mapping[str, tuple[int, int]], name: str, version: str) -> bool:
    """True if the runtime of this name and version (`v2.2.9`) is among these, or newer."""
    numbers = re.match(r"v?(\d{1,4})\.(\d{1,4})", version)
    if name not in first or numbers is None:
        return False
    return (int(numbers[1]), int(numbers[2])) >= first[name]
