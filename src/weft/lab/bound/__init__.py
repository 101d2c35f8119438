"""Upper bounds on the GPU capacity that any policy can allocate to a workload's pods.

In: a relaxation of cluster and workload, prices that prove a bound, and the search for them. Out:
placing pods (a bound has no placement), and live decisions."""
