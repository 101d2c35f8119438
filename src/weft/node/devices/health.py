"""What a GPU's errors mean: which XIDs put it out of service, and the words for it.

An XID is the driver's number for an error. Those that a program brings on itself leave the card as
good as it was; NVIDIA's device plugin leaves out the same.
"""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics engine exception, page fault, stopped processing, preemptive clean-up, video processor
exception, context switch time-out: one process ends, the GPU goes on."""

_WORDS = {
    48: "double-bit ECC error",
    63: "memory page retired or row remapped",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP does not answer",
    120: "GSP error",
}


def fault_of_xid(xid: int) -> str:
    """Why a GPU with this XID is out of service; "" where it is not."""
    if xid in APPLICATION_XIDS:
        return ""
    words = _WORDS.get(xid)
    return f"XID {xid}: {words}" if words else f"XID {xid}"
