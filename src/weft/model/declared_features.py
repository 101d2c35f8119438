"""Features that kubelets declare (node.status.declaredFeatures), as far as pods need them.

Names and needs are those of Kubernetes 1.36. A kubelet can run such a pod only with the feature's
gate on, which needs NodeDeclaredFeatures: so no node that can run it fails to declare it.
"""

RESTARTS_ALL = "RestartAllContainersOnContainerExits"
"""For a container whose restart rules have the action RestartAllContainers."""
HOST_NETWORK_USERS = "UserNamespacesHostNetworkSupport"
"""For a pod on the host's network that has users of its own."""

NEEDED = frozenset((RESTARTS_ALL, HOST_NETWORK_USERS))
