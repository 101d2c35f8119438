"""`weft agent`: what runs on each GPU node; composed in `agent_hosting`."""

import logging
import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from weft.cli import options
from weft.model.errors import BadInputError

NVML = "nvml"
NODE_NAME = "NODE_NAME"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def agent(
    node_name: Annotated[
        str, Option(help="The node's name in Kubernetes.  [default: NODE_NAME, the host's name]")
    ] = "",
    devices: Annotated[
        str, Option(metavar="nvml|FILE", help="The node's GPUs: the driver's, or played by a file.")
    ] = NVML,
    nri_socket: Annotated[Path, Option(help="The container runtime's NRI socket.")] = Path(
        "/var/run/nri/nri.sock"
    ),
    listen: Annotated[
        str,
        Option(
            metavar="ADDRESS:PORT",
            help="Health and metrics.  [default: as configured, :9400]",
        ),
    ] = "",
    config: options.ConfigFile = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = "",
    log: Annotated[LogLevel, Option(help="How much is logged.")] = LogLevel.INFO,
) -> None:
    """Give each container of this node the GPU share that its pod's Binding promised.

    Run one on each GPU node, as root: it registers with the container runtime (NRI).
    """
    import uvloop

    from weft.cli.agent_hosting import AgentHosting, host
    from weft.cluster.config.form import Configuration
    from weft.cluster.config.read import read

    settings = read(config) if config is not None else Configuration()
    address, port = _address(listen, settings.agent.address, settings.agent.port)
    hosting = AgentHosting(
        node_name=node_name or os.environ.get(NODE_NAME, "") or socket.gethostname(),
        devices=devices,
        nri_socket=nri_socket,
        address=address,
        port=port,
        kubeconfigs=(kubeconfig,) if kubeconfig else (),
        context=context,
    )
    logging.basicConfig(
        level=log.value.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    uvloop.run(host(settings, hosting))


def _address(text: str, address: str, port: int) -> tuple[str, int]:
    """Where to listen: as the option says, else as configured."""
    if not text:
        return address, port
    host, colon, number = text.rpartition(":")
    if not colon or not number.isdecimal() or int(number) > 65_535:
        raise BadInputError("--listen", f"{text!r} is no address; write one such as 0.0.0.0:9400")
    return host.strip("[]") or "0.0.0.0", int(number)
