"""Features that kubelets declare (node.status.declaredFeatures) and that some pods need.

Names and needs are those of Kubernetes 1.36. A kubelet runs a pod that needs a feature only with
the feature's gate on, which requires NodeDeclaredFeatures. So every node that can run such a pod
declares the feature.
"""

RESTARTS_ALL = "RestartAllContainersOnContainerExits"
"""Needed by a pod with a container whose restart rules have the action RestartAllContainers."""
HOST_NETWORK_USERS = "UserNamespacesHostNetworkSupport"
"""Needed by a pod on the host's network with a user namespace of its own."""

NEEDED = frozenset((RESTARTS_ALL, HOST_NETWORK_USERS))
