"""Takes over a running cluster from the schedulers that filled it, and gives it back.

Contents: the charge of each running pod, computed by the scheduler's own code; finding other
schedulers and device plugins, and problems to fix first; labelling namespaces, whose previous
labels are recorded. `weft adopt` prints the plan. Not here: changing, restarting or evicting pods,
as Weft reads their existing annotations."""
