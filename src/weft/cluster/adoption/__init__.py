"""Takes over a running cluster from the schedulers that filled it, and gives it back.

In: the charge of each pod, read by the scheduler's own code; other schedulers and device plugins;
problems to fix first; namespaces that opt in, recorded before they are changed. `weft adopt` prints
the plan. Out: changing pods: none is changed, restarted or evicted, as Weft reads their existing
annotations."""
