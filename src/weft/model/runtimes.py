"""Abilities of container runtimes for NRI plugins, by the name and version that they report.

Versions are released ones; a runtime that is not listed here is assumed to have no such ability.
"""

import re
from collections.abc import Mapping

_CDI_FROM = {"containerd": (2, 1), "cri-o": (1, 34)}
_LAST_CDI_FROM = {"containerd": (2, 2)}
_VALIDATORS_FROM = {"containerd": (2, 2)}
_CLOSES_FROM = {"containerd": (2, 2), "cri-o": (1, 34)}

CONTAINERD_LINES = """\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true
"""
"""Lines of containerd's configuration (2.2 or later, `version = 3`) that make it require the
plugins a pod names."""
CRIO_LINES = """\
[crio.nri]
enable_nri = true
[crio.nri.default_validator]
nri_enable_default_validator = true
"""
"""Lines of CRI-O's configuration (1.34 or later, in a file below /etc/crio/crio.conf.d) that
make it require the plugins a pod names."""


def takes_cdi(runtime: str) -> bool:
    """Return True if this runtime (`containerd v2.2.9`) applies the CDI device names that a plugin
    gives; earlier versions drop these silently."""
    return is_from(_CDI_FROM, *runtime.partition(" ")[::2])


def puts_cdi_last(runtime: str) -> bool:
    """Return True if the runtime applies a plugin's CDI devices last, so that their environment
    wins over the image's and the pod's."""
    return is_from(_LAST_CDI_FROM, *runtime.partition(" ")[::2])


def has_validators(runtime: str) -> bool:
    """Return True if this runtime is known to let plugins validate containers."""
    return is_from(_VALIDATORS_FROM, *runtime.partition(" ")[::2])


def closes(runtime: str) -> bool:
    """Return True if this runtime can be configured to refuse containers while a required plugin is
    away."""
    return is_from(_CLOSES_FROM, *runtime.partition(" ")[::2])


def how_to_close(runtime: str) -> str:
    """Return how to configure this runtime so that it creates no container while a required plugin
    is away: the lines of its configuration, or the version needed."""
    name, _, version = runtime.partition(" ")
    if name == "cri-o":
        where, lines, service = "/etc/crio/crio.conf.d/60-weft.conf", CRIO_LINES, "crio"
        able, first = is_from(_CLOSES_FROM, name, version), "CRI-O 1.34"
    else:
        where, lines, service = "/etc/containerd/config.toml", CONTAINERD_LINES, "containerd"
        able, first = is_from(_CLOSES_FROM, name, version), "containerd 2.2"
    told = " ".join(line.strip() for line in lines.splitlines())
    way = f"write into {where} {told} and restart {service}"
    return way if able else f"{runtime or 'this runtime'} cannot: from {first} on, {way}"


def is_from(first: Mapping[str, tuple[int, int]], name: str, version: str) -> bool:
    """Return True if `first` has an entry for this runtime's name, and its version (`v2.2.9`) is
    that version or newer."""
    numbers = re.match(r"v?(\d{1,4})\.(\d{1,4})", version)
    if name not in first or numbers is None:
        return False
    return (int(numbers[1]), int(numbers[2])) >= first[name]
