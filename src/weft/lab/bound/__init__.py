"""Upper bounds on the GPU capacity that any policy can allocate to a workload's pods.

In: a relaxation of cluster and workload, and the search for prices that prove a bound.
Out: placing pods (a bound has no placement), and live decisions."""
