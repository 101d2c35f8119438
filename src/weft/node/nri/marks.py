"""Tells from a sandbox's annotations, as the runtime has them, whether its pod has a share."""

from weft.dialects import alnair, elastic, gpushare
from weft.model.annotations import DELIVERY, PLACEMENT, REQUIRED_PLUGINS
from weft.node.nri import nri_pb2 as nri

PLUGIN = "weft"
"""The agent's name as a plugin, which pods require."""

_REQUIRED = REQUIRED_PLUGINS.partition("/")[0]
_MARKS = (DELIVERY, PLACEMENT, gpushare.PREFIX, elastic.ASSUMED, elastic.CONTAINER, alnair.GPU_ID)


def says_ours(pod: nri.PodSandbox) -> bool:
    """True if the pod's annotations say that it has a share: the runtime is to wait for us, or
    some scheduler wrote which GPU it is."""
    return any(
        key.startswith(_MARKS) or (key.startswith(_REQUIRED) and PLUGIN in text)
        for key, text in pod.annotations.items()
    )
