"""Upper bound of the GPU that any policy can give to a workload's pods.

In: the relaxation of a cluster and its workload, prices that prove the bound, the search for them.
Out: placing pods (the bound has no placement) and deciding anything live.
"""
