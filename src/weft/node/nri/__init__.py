"""NRI, the container runtime's plugin interface (v1alpha1), as a plugin in asyncio.

In: the multiplexer's frames, ttrpc in them, registering and answering, reconnecting when the
runtime disconnects. containerd (1.7 and later) and CRI-O offer it on a Unix socket. Out: what a
container is given (`node/agent/`). Nothing here depends on GPUs or Kubernetes.
"""
