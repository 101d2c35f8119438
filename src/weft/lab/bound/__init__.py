"""Upper bounds on the GPU capacity that any policy can allocate to a workload's pods.

Contents: a relaxation of cluster and workload, and the search for prices that prove a bound. Not
here: placing pods (a bound has no placement), and live decisions."""
