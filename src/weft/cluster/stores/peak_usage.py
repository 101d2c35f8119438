"""Encodes and decodes learnt peaks (the most GPU memory that pods of a kind used) as one key of the
ConfigMap with the OOM history.

  peaks.v1.json: {"peaks": [{"namespace": …, "owner": …, "asks": …, "most_mib": 900, "runs": 3}]}

The kinds of pods that were updated least recently come first, and are dropped first if there is no
room."""

from collections.abc import Mapping

import msgspec

from weft.core.engine import PeakLearnt
from weft.core.engine.peak_usage import Kind, PeakUsage
from weft.model.ceilings import MOST_GPU_MIB
from weft.model.former_names import with_todays_names

KEY = "peaks.v1.json"
EVERY_S = 60.0
"""Seconds between two writes: peaks are not urgent."""
MOST_BYTES = 400_000
MOST_IN_ALL = 900_000
"""Size limit in bytes of all keys and values together; a ConfigMap may have 1 MiB."""
_MOST_LETTERS = 1_000  # a namespace, a kind and a name, of 253 each at most


class _Kept(msgspec.Struct):
    peaks: list[PeakLearnt]


def encode(known: Mapping[Kind, PeakUsage], others: Mapping[str, str]) -> str:
    """Return the peaks in `known` as JSON, as many as have room next to the ConfigMap's other keys;
    "" if there are no peaks."""
    used = sum(len(key) + len(text.encode()) for key, text in others.items() if key != KEY)
    left = min(MOST_BYTES, MOST_IN_ALL - used)
    kinds = [
        PeakLearnt(*kind, peak.most_mib, peak.runs)
        for kind, peak in known.items()
        if _sensible(*kind, peak.most_mib, peak.runs)
    ]
    while kinds:
        text = msgspec.json.encode(_Kept(kinds))
        if len(text) <= left:
            return text.decode()
        del kinds[: len(kinds) // 8 + 1]
    return ""


def decode(text: str) -> tuple[PeakLearnt, ...]:
    """Decode stored peaks; `msgspec.DecodeError` if Weft did not write them."""
    try:
        document = with_todays_names(msgspec.json.decode(text), {"who": "owner"})
        kinds = msgspec.convert(document, _Kept).peaks
    except RecursionError:
        raise msgspec.DecodeError("is nested too deeply") from None
    for peak in kinds:
        if not _sensible(*msgspec.structs.astuple(peak)):
            raise msgspec.ValidationError(f"{str(peak)[:200]} is out of range")
    return tuple(kinds)


def _sensible(namespace: str, owner: str, asks: str, most_mib: int, runs: int) -> bool:
    short = max(map(len, (namespace, owner, asks))) <= _MOST_LETTERS
    return short and 0 < most_mib <= MOST_GPU_MIB and 0 <= runs < 1 << 53
