"""Offer of an agent to pods on its node: the value of the annotation `weft.dev/agent`."""

from typing import Final, Literal

import msgspec

from weft.model.ceilings import MOST_LETTERS

NO_ISOLATION, TIME_SLICING, MPS, HOOK, MIG = "none", "time-slicing", "mps", "hook", "mig"
ISOLATIONS = (NO_ISOLATION, TIME_SLICING, MPS, HOOK, MIG)
"""Isolation modes: ways to limit a container's use of a GPU to its share, and "none" and
"time-slicing", which do not limit it. A pod requests a mode by `weft.dev/isolation`."""

WITHOUT_AGENT = (NO_ISOLATION, TIME_SLICING)
"""Modes that a node without an agent offers too: no limit, and the GPU's own time-slicing among
processes, which enforces nothing."""

BY_NAME: Final = "by-name"
DEVICE_PLUGIN: Final = "device-plugin"
"""Ways in which shares reach containers: by the container runtime, which names the pod to the
agent, or by the kubelet, whose device plugin calls name no pod."""

_MOST_MODES = 16
MOST_TOLD = 1000


class AgentOffer(msgspec.Struct, frozen=True, gc=False):
    """An agent's offer. `version` is the agent's version, `delivery` says how shares reach
    containers, `isolation` lists the isolation modes that the agent can set up. `fail_closed`: a
    trial showed that the container runtime starts no container of a pod that requires the agent
    (`REQUIRED_PLUGINS`) while the agent is away; `open_because` says why the runtime would start
    one, `runtime` names the runtime, both for messages. `drop_in`: the file on the node by which
    the agent configured the runtime, "" if it did not. `compares_records`: the agent refuses
    delivery records that grant more than the pod requests or was placed with.

    Modes that this version does not know are kept: no pod requests them.
    """

    version: str
    delivery: Literal["by-name", "device-plugin"]
    isolation: tuple[str, ...] = WITHOUT_AGENT
    fail_closed: bool = False
    compares_records: bool = False
    open_because: str = ""
    runtime: str = ""
    drop_in: str = ""


def encode_offer(offer: AgentOffer) -> str:
    """Return the value of the annotation `weft.dev/agent` for this offer."""
    return msgspec.json.encode(offer).decode()


def decode_offer(text: str) -> AgentOffer:
    """Return the offer in a value of `weft.dev/agent`; `ValueError` says what is wrong with it."""
    try:
        offer = msgspec.json.decode(text, type=AgentOffer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if len(offer.version) > MOST_LETTERS:
        raise ValueError(f"the version has more than {MOST_LETTERS} characters")
    if max(map(len, (offer.open_because, offer.runtime, offer.drop_in))) > MOST_TOLD:
        raise ValueError(f"a text has more than {MOST_TOLD} characters")
    if len(offer.isolation) > _MOST_MODES or any(len(m) > MOST_LETTERS for m in offer.isolation):
        raise ValueError(f"more than {_MOST_MODES} isolation modes, or an invalid name")
    return offer


# --- heartbeat ------------------------------------------------------------------------------------
# The Lease by which a node's agent shows that it runs and delivers: its name, and when it is late.


HEARTBEAT_PREFIX: Final = "weft-agent-"
HEARTBEAT_LATE_S: Final = 14
"""Seconds without a renewal after which an agent counts as away. It renews its Lease every 10 s;
one attempt may fail."""


def heartbeat_name(node: str) -> str:
    """Return the name of the Lease of this node's agent."""
    return f"{HEARTBEAT_PREFIX}{node}"
