"""What no policy can exceed: an upper bound of the GPU that a workload's pods can be given.

In: the relaxation of a cluster and its workload, prices that prove the bound, the search for them.
Out: placing pods (the bound has no placement) and deciding anything live.
"""
