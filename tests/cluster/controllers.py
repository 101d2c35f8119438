"""kube-controller-manager with the controllers that a test needs, and no others."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from control_plane import HOST, ControlPlane
from processes import Server, free_ports

OF_VOLUMES = (
    *("persistentvolume-binder-controller", "persistentvolume-protection-controller"),
    *("persistentvolumeclaim-protection-controller", "ephemeral-volume-controller"),
)


@contextlib.contextmanager
def controllers(
    plane: ControlPlane, program: Path, names: Sequence[str], *options: str
) -> Iterator[None]:
    """They run inside."""
    (port,) = free_ports(1)
    server = Server(
        [
            *(program, f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"),
            *(f"--bind-address={HOST}", f"--secure-port={port}"),
            f"--cert-dir={plane.folder / 'controllers'}",
            f"--controllers={','.join(names)}",
            *options,
        ],
        plane.folder / "kube-controller-manager.log",
    )
    server.start()
    try:
        yield
    finally:
        server.kill()


def job_controllers(plane: ControlPlane, program: Path) -> contextlib.AbstractContextManager[None]:
    """Run those of Jobs and namespaces: Jobs get pods and end, namespaces that are deleted go."""
    return controllers(plane, program, ("job-controller", "namespace-controller"))
