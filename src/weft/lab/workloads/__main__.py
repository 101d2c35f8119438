"""Lists or runs workloads, with any Python that has PyTorch: `python -m weft.lab.workloads …`."""

import argparse
import json
import sys

from weft.lab.workloads.catalog import ANSWERS, BY_NAME, WORKLOADS
from weft.lab.workloads.queries import answer
from weft.lab.workloads.running import RunOptions, RunOrders, run, standard_output


def main() -> int:
    """List the workloads, or run one."""
    parser = argparse.ArgumentParser(prog="python -m weft.lab.workloads", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print one JSON object per workload")
    runs = commands.add_parser("run", help="run a workload, and print its progress")
    runs.add_argument("name", choices=sorted(BY_NAME), metavar="NAME")
    runs.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    runs.add_argument("--seconds", type=float, default=10.0, help="seconds of steady running")
    runs.add_argument(
        "--warm-seconds", type=float, default=2.0, help="seconds of warm-up, which do not count"
    )
    runs.add_argument("--tiny", action="store_true", help="use tiny sizes, to try it on a CPU")
    runs.add_argument("--orders", action="store_true", help="read orders from stdin: go, pause")
    answers = commands.add_parser("answer", help="run queries, then print their latencies")
    answers.add_argument("name", choices=sorted(ANSWERS), metavar="NAME")
    answers.add_argument(
        "--queries", type=_two_or_more, default=1024, help="number, 2 or more [1024]"
    )
    answers.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    answers.add_argument("--tiny", action="store_true", help="use tiny sizes, to try it on a CPU")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for workload in WORKLOADS:
            sys.stdout.write(json.dumps(workload._asdict()) + "\n")
        return 0
    out = standard_output()
    if arguments.command == "answer":
        workload, device = ANSWERS[arguments.name], arguments.device
        return answer(workload, device, arguments.tiny, arguments.queries, out)
    running = RunOptions(
        arguments.device, arguments.seconds, arguments.warm_seconds, arguments.tiny
    )
    orders = RunOrders(sys.stdin.fileno() if arguments.orders else None)
    return run(BY_NAME[arguments.name], running, out, orders)


def _two_or_more(text: str) -> int:
    """Parse a number of queries large enough for percentiles."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of queries; write 2 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
