"""The kubelet's device plugin interface, for nodes whose container runtime has no NRI.

Contents: advertising GPU resources to the kubelet as device IDs, answering its calls, finding from
the kubelet's record which container a set of IDs is for, and giving that container its share. Not
here: deciding what a container is given (its delivery record says that), and delivery by name
(NRI).
"""
