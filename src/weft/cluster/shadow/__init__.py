"""Compares each binding seen on a live cluster with the choice of a configuration; writes nothing.

Contents: the configuration's choice in the state right before a binding, and the effect of both
places. Not here: deciding or writing anything on the cluster, and printing."""
