"""`weft agent`: the process on each GPU node; composed in `host/agent.py`."""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated, NoReturn

from typer import Option

from weft.cli import logs, options
from weft.model.errors import BadInputError

NVML = "nvml"
NODE_NAME = "NODE_NAME"
SUPERVISED = "--supervised"
NOTE = "runtime-configuration.json"
AT_THE_START = ("weft.host.agent", "weft.node.cri.trial")
"""Modules that an agent imports only after its start; a supervisor imports them before it forks
agents."""


NodeName = Annotated[
    str, Option(help="The node's name in Kubernetes.  [default: NODE_NAME, the host's name]")
]
Devices = Annotated[
    str, Option(metavar="nvml|FILE", help="The node's GPUs: the driver's, or simulated by a file.")
]
NriSocket = Annotated[Path, Option(help="The container runtime's NRI socket.")]
Listen = Annotated[
    str,
    Option(
        metavar="ADDRESS:PORT",
        help="Address of health and metrics.  [default: as configured, :9400]",
    ),
]
DevicePlugins = Annotated[
    bool, Option("--device-plugins", help="Deliver through the kubelet: for nodes without NRI.")
]
Cdi = Annotated[
    bool | None,
    Option(help="Whether the runtime resolves CDI names.  [default: as its version says]"),
]
CdiFolder = Annotated[Path, Option(help="Where the runtime looks for CDI specifications.")]
PodResources = Annotated[Path, Option(help="The kubelet's pod resources socket.")]
CriSocket = Annotated[
    Path,
    Option(
        help="The container runtime's CRI socket, to test that it fails closed without the agent."
    ),
]
ConfigureRuntime = Annotated[
    bool,
    Option(
        "--configure-runtime",
        help="Configure containerd to fail closed without the agent: write a drop-in, restart it.",
    ),
]
Supervised = Annotated[
    bool,
    Option(
        SUPERVISED,
        help="Restart the agent if it is killed, and refuse containers with a share meanwhile.",
    ),
]
Lock = Annotated[
    Path,
    Option(
        help="With --supervised: a lock file, so that one agent at a time delivers on this node."
    ),
]
Cleanup = Annotated[
    bool, Option("--cleanup", help="Remove everything that the agent wrote to the node, and exit.")
]
AllNodes = Annotated[bool, Option("--all-nodes", help="With --cleanup: on every node.")]

NodePod = Annotated[
    Path | None,
    Option(
        help="With --all-nodes: manifest of a pod for each node whose containerd an agent "
        "configured; it removes that configuration."
    ),
]


def agent(
    node_name: NodeName = "",
    devices: Devices = NVML,
    nri_socket: NriSocket = Path("/var/run/nri/nri.sock"),
    listen: Listen = "",
    device_plugins: DevicePlugins = False,
    cdi: Cdi = None,
    cdi_folder: CdiFolder = Path("/var/run/cdi"),
    pod_resources: PodResources = Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    cri_socket: CriSocket = Path("/run/containerd/containerd.sock"),
    configure_runtime: ConfigureRuntime = False,
    supervised: Supervised = False,
    lock: Lock = Path("/run/weft/agent.lock"),
    cleanup: Cleanup = False,
    all_nodes: AllNodes = False,
    node_pod: NodePod = None,
    config: options.ConfigFile = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = "",
    log_level: logs.Log = logs.LogLevel.INFO,
    log_format: logs.Format = logs.LogFormat.TEXT,
) -> None:
    """Deliver GPU shares to this node's containers, through NRI; run as root on each GPU node."""
    if all_nodes and not cleanup:
        raise BadInputError("--all-nodes", "requires --cleanup; add it or remove this option")
    name = node_name or os.environ.get(NODE_NAME, "") or socket.gethostname().lower()
    with logs.daemon(log_format, log_level, node=name):
        kubeconfigs = (kubeconfig,) if kubeconfig else ()
        if cleanup:
            from weft.cli.agent_cleanup import CleanupOptions, clean_up

            here = CleanupOptions(cdi_folder, cri_socket, config, node_pod)
            clean_up("" if all_nodes else name, kubeconfigs, context, here)
            return
        if supervised:
            guarded = None if device_plugins else nri_socket
            _become_supervisor(lock, guarded, log_level, log_format, name)
        import uvloop

        from weft.cluster.config.form import Configuration
        from weft.cluster.config.read import read
        from weft.host.agent import AgentHosting, host
        from weft.node.supervisor.delivery_lock import handed_over
        from weft.node.supervisor.fork_server import begin_when_told

        begin_when_told(os.environ, AT_THE_START)
        settings = read(config) if config is not None else Configuration()
        address, port = _address(listen, settings.agent.address, settings.agent.port)
        hosting = AgentHosting(
            node_name=name,
            devices=devices,
            nri_socket=nri_socket,
            address=address,
            port=port,
            kubeconfigs=kubeconfigs,
            context=context,
            device_plugins=device_plugins,
            cdi=cdi,
            cdi_folder=cdi_folder,
            pod_resources=pod_resources,
            cri_socket=cri_socket,
            handed=handed_over(os.environ),
            configuring=lock.parent / NOTE if configure_runtime else None,
        )
        # GPUs are read in a thread: with the default interval (5 ms) the creation of a container
        # could wait that long for the thread.
        sys.setswitchinterval(0.000_5)
        uvloop.run(host(settings, hosting))


def _become_supervisor(
    lock: Path, guarded: Path | None, level: str, form: str, node: str
) -> NoReturn:
    """Replace this process by the supervisor, which runs the same command without --supervised."""
    options = ["--lock", str(lock), "--node", node, f"--log={level}", f"--log-format={form}"]
    options += ["--guard", str(guarded)] if guarded is not None else []
    own = [word for word in sys.orig_argv[1:] if word != SUPERVISED]
    python = sys.executable
    os.execv(python, [python, "-P", "-m", "weft.node.supervisor", *options, "--", python, *own])


def _address(text: str, address: str, port: int) -> tuple[str, int]:
    """Return the address and port of --listen, or the configured ones if `text` is ""."""
    if not text:
        return address, port
    host, colon, number = text.rpartition(":")
    if not colon or not number.isdecimal() or int(number) > 65_535:
        raise BadInputError(
            "--listen", f"{text!r} is not an address; write one such as 0.0.0.0:9400"
        )
    return host.strip("[]") or "0.0.0.0", int(number)
