"""Takes over a running cluster from the schedulers that filled it, and gives it back.

In: what each pod holds, read by the scheduler's own code; other schedulers and device plugins;
problems to fix first; namespaces that opt in, recorded before they are changed. `weft adopt` prints
it. Out: changes to pods: none is changed, restarted or evicted, since Weft reads their existing
annotations."""
