"""GPUs that NVIDIA's device plugin gave to pods: the value of `weft.dev/plugin-gpus` on their node.

Only the kubelet knows these GPUs. The node's agent asks it and writes this annotation. An entry
stays true while its pod exists, so it may be as old as the pod.
"""

import msgspec

from weft.model.ceilings import MOST_GPUS, MOST_LETTERS

MOST_PODS = 4096
MOST_REPLICAS = 1_000_000


class GivenGpu(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pod's part of a GPU: `devices` of the `replicas` devices that the plugin offers of the GPU;
    1 of 1 is the whole GPU. `card` is the GPU's index in `PluginGpus.cards`."""

    card: int
    devices: int
    replicas: int


class PluginGpus(msgspec.Struct, frozen=True):
    """GPUs that pods of a node hold: `cards` are UUIDs of GPUs and MIG instances; `pods` has, by a
    pod's UID, what the pod holds of which card."""

    cards: tuple[str, ...] = ()
    pods: dict[str, tuple[GivenGpu, ...]] = {}


NONE_GIVEN = PluginGpus()


def encode_plugin_gpus(given: PluginGpus) -> str:
    """Return the value of the annotation `weft.dev/plugin-gpus`."""
    return msgspec.json.encode(given, order="sorted").decode()


def decode_plugin_gpus(text: str) -> PluginGpus:
    """Return the GPUs in a value of `weft.dev/plugin-gpus`; `ValueError` says what is wrong with
    it."""
    try:
        given = msgspec.json.decode(text, type=PluginGpus)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if len(given.cards) > MOST_GPUS or any(len(uuid) > MOST_LETTERS for uuid in given.cards):
        raise ValueError(f"more than {MOST_GPUS:,} GPUs, or an invalid UUID")
    if len(set(given.cards)) != len(given.cards):
        raise ValueError("it names a GPU twice")
    if len(given.pods) > MOST_PODS:
        raise ValueError(f"more than {MOST_PODS:,} pods")
    for uid, gpus in given.pods.items():
        if len({gpu.card for gpu in gpus}) != len(gpus):
            raise ValueError(f"pod {uid[:40]!r} has a GPU twice")
        for gpu in gpus:
            if not 0 <= gpu.card < len(given.cards):
                raise ValueError(f"pod {uid[:40]!r} has GPU {gpu.card}, which is not listed")
            if not 1 <= gpu.devices <= gpu.replicas <= MOST_REPLICAS:
                raise ValueError(
                    f"pod {uid[:40]!r} has {gpu.devices} of {gpu.replicas} devices of a GPU"
                )
    return given
