"""A run of a node with a pod on it, for `test_machine_state.py` to end in every way there is."""

import json
import signal
import sys
from pathlib import Path

from control_plane import ControlPlane
from real_node import API_SERVER_OPTIONS, RealNode


def main(tools: dict[str, Path], folder: Path) -> None:
    """Say `running` as soon as a pod runs, then wait for a signal."""
    plane = ControlPlane(tools, folder, API_SERVER_OPTIONS)
    with plane, RealNode(plane, tools) as node:
        plane.create_namespace("test")
        pod = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main"}]}}
        node.run([pod], "test")
        sys.stdout.write("running\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main(
        {name: Path(path) for name, path in json.loads(sys.argv[1]).items()},
        Path(sys.argv[2]),
    )
