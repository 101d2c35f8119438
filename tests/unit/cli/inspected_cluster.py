"""A cluster behind a fake API server for commands that are synchronous: served in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fakes.api_server import FakeApiServer

KUBECONFIG = """apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[FakeApiServer, Path]]:
    """The server, and a kubeconfig that leads to it."""
    server, loop = FakeApiServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(url=server.url))
    try:
        yield server, kubeconfig
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def node(name: str, address: str = "", **allocatable: Any) -> dict[str, Any]:
    """A node; `gpu_mem` is `aliyun.com/gpu-mem`, `gpu_count` its count."""
    amounts = {
        f"aliyun.com/{key.replace('_', '-')}": str(value) for key, value in allocatable.items()
    }
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": amounts, "capacity": amounts, "addresses": addresses}
    return {"metadata": {"name": name}, "spec": {}, "status": {**status, "conditions": ready}}


def pod(name: str, on: str, limits: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A running pod with one container."""
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }
