"""The scheduler process: one of the hosts, and the only one that decides by itself.

In: the life of the process (follow, lead, drain), the leader's label, what it answers over HTTP
about itself. Out: deciding (`core/engine/`), the live cluster (`cluster/`), the lease itself
(`kube/`), and the other hosts: what is served beside it is composed in `cli/`.
"""
