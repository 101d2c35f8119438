"""Makes a container runtime wait for Weft's agent: NRI's annotations of required plugins.

containerd's default validator uses the first of these annotations that a pod has for a container,

    required-plugins.noderesource.dev/container.<name>, …/pod, required-plugins.noderesource.dev

each a YAML list of plugins' names, and creates no container while one of these plugins is missing.
So Weft is added to each list that the validator may use, and what the pod itself requires stays
required.
"""

from collections.abc import Mapping

import msgspec

from weft.files import yaml_text
from weft.model import BadInputError
from weft.model.annotations import REQUIRED_PLUGINS

PLUGIN = "weft"
"""The name by which the agent registers with the container runtime."""

_BARE = REQUIRED_PLUGINS.rpartition("/")[0]
_OF_CONTAINER = f"{_BARE}/container."
_ALONE = f"[{PLUGIN}]"
_LONGEST = 4096
"""The longest list that is kept, in characters; a longer one cannot be meant, and is replaced."""


def required_plugins(present: Mapping[str, str] | None) -> dict[str, str]:
    """Return the annotations to add to a pod that has the annotations `present`, so that none of
    its containers starts without Weft's agent."""
    if not present:
        return {REQUIRED_PLUGINS: _ALONE}
    of_pod = present.get(REQUIRED_PLUGINS, present.get(_BARE))
    lists = {REQUIRED_PLUGINS: _with_weft(of_pod)}
    for key, text in present.items():
        if key.startswith(_OF_CONTAINER):
            lists[key] = _with_weft(text)
    return lists


def _with_weft(text: str | None) -> str:
    if text is None or len(text) > _LONGEST:
        return _ALONE
    try:
        names = yaml_text.load(text)
    except (BadInputError, yaml_text.BrokenYamlError):
        return text  # the runtime cannot read it either, and refuses the container
    if names is None:
        return _ALONE
    if not isinstance(names, list):
        return text
    words = [str(name) for name in names]
    return text if PLUGIN in words else msgspec.json.encode([*words, PLUGIN]).decode()
