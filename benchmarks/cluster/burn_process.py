"""Computes for a share of the time, as a console and its browsers do, and asks nobody.

    python burn_process.py FILE

FILE has the share, and may change at any time. Says `burning` once it is ready.
"""

import sys
import time
from pathlib import Path

import msgspec

_TURN_S = 0.02
_PODS = 1_000


def rows() -> dict[str, dict[str, object]]:
    """As much as a picture of a small cluster."""
    return {
        f"uid-{number}": {"name": f"pod-{number}", "shares": [{"gpu": number % 8, "mib": number}]}
        for number in range(_PODS)
    }


def main(share_file: Path) -> None:
    text = msgspec.json.encode(rows())
    print("burning", flush=True)
    next_s, owed_s, share = time.monotonic(), 0.0, 0.0
    while True:
        used_s = time.process_time()
        while owed_s > time.process_time() - used_s:
            msgspec.json.encode(msgspec.json.decode(text))
        owed_s -= time.process_time() - used_s
        next_s = max(time.monotonic(), next_s + _TURN_S)
        time.sleep(max(0.0, next_s - time.monotonic()))
        share = float(share_file.read_text() or share)  # empty while it is written
        owed_s = owed_s + share * _TURN_S if share else 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
