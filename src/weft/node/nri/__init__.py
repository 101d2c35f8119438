"""NRI, the container runtime's plugin interface (v1alpha1), as a plugin in asyncio.

containerd (1.7 and later) and CRI-O offer NRI on a Unix socket. Contents: the multiplexer's frames
and the ttrpc messages in them, registering and answering, reconnecting when the runtime
disconnects. Not here: what a container is given (`node/agent/`). Nothing here depends on GPUs.
"""
