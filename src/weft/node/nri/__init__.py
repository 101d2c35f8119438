"""NRI, the container runtime's plugin interface (v1alpha1), as a plugin in asyncio.

In: the multiplexer's frames, ttrpc in them, registering and answering, coming back when the runtime
went away. containerd (1.7 and later) and CRI-O speak it on a Unix socket.
Out: what a container is given (`node/agent/`). Neither GPUs nor Kubernetes are known here.
"""
