"""Compares each binding seen on a live cluster with the choice of a configuration; writes nothing.

In: the configuration's choice in the state right before a binding, and the effect of both places.
Out: deciding or writing anything on the cluster, and printing."""
