"""Weft on a real control plane, beside the real kube-scheduler; writes build/bench/cluster.json.

Every row has a fresh etcd and kube-apiserver of its own. Contenders take turns (A B C A B C …) on
the same nodes, with pods of the same names, created anew each time. A bar that is missed makes the
exit code 1; with --quick only a failed audit does, for the sizes are too small to compare.

    python benchmarks/cluster [--rows standalone,scale] [--runs 3] [--quick]
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import admission
import bursts
import consoles
import msgspec
import scale
import shadowing
import throughput
from binaries import versions as binary_versions
from report import QUICK, Bar, Row, Sizes, machine, versions
from stage import Stage

ROWS: dict[str, Callable[[Stage, Sizes], Row]] = {
    "standalone": throughput.standalone,
    "all-nodes": throughput.all_nodes,
    "rules": throughput.rules,
    "extender": throughput.extender,
    "burst": bursts.burst,
    "scale": scale.scale,
    "small-burst": bursts.small_burst,
    "admission": admission.admission,
    "shadow": shadowing.shadow,
    "console": consoles.console,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="which, separated by commas")
    parser.add_argument("--runs", type=int, help="of each contender  [default: 3]")
    parser.add_argument("--quick", action="store_true", help="small and once: does it work at all?")
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    parser.add_argument("--out", type=Path, default=Path("build/bench/cluster.json"))
    wish = parser.parse_args()
    names = [name.strip() for name in wish.rows.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    sizes = QUICK if wish.quick else Sizes()
    if wish.runs:
        sizes = msgspec.structs.replace(sizes, runs=wish.runs)
    report = {"quick": wish.quick, "machine": machine(), "versions": versions(binary_versions())}
    rows: dict[str, object] = {}
    missed = 0
    for name in names:
        print(f"{name}", flush=True)
        row = measured(name, sizes, wish.keep)
        rows[name] = row.told()
        missed += sum(not bar.met for bar in row.bars if bar.rule == "is" or not wish.quick)
        for bar in row.bars:
            print(f"  {bar}", flush=True)
        wish.out.parent.mkdir(parents=True, exist_ok=True)
        wish.out.write_text(json.dumps({**report, "rows": rows}, indent=1) + "\n")
    print(f"{wish.out}: {missed} bars missed" if missed else f"{wish.out}: every bar is met")
    return 1 if missed else 0


def measured(name: str, sizes: Sizes, keep: Path | None) -> Row:
    """One row on a stage of its own; a row that breaks off is a row with a missed bar."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as temporary:
        folder = (keep or Path(temporary)) / name
        began = time.monotonic()
        try:
            with Stage(folder) as stage:
                row = ROWS[name](stage, sizes)
        except Exception as error:
            traceback.print_exc()
            return Row({}, {"error": f"{type(error).__name__}: {error}"}, [Bar.true("ran", False)])
        row.figures["row_took_s"] = round(time.monotonic() - began, 1)
        return row


if __name__ == "__main__":
    sys.exit(main())
