"""kube-controller-manager with what Jobs and namespaces need."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from control_plane import HOST, ControlPlane
from processes import Server, free_ports


@contextlib.contextmanager
def job_controllers(plane: ControlPlane, program: Path) -> Iterator[None]:
    """They run inside: Jobs get pods and end, namespaces that are deleted go."""
    (port,) = free_ports(1)
    server = Server(
        [
            *(program, f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"),
            *(f"--bind-address={HOST}", f"--secure-port={port}"),
            f"--cert-dir={plane.folder / 'controllers'}",
            "--controllers=job-controller,namespace-controller",
        ],
        plane.folder / "kube-controller-manager.log",
    )
    server.start()
    try:
        yield
    finally:
        server.kill()
