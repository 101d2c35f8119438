"""Takes a living cluster over from the schedulers that filled it, and gives it back.

In: what each pod there holds, by the very code that the scheduler reads it by; who else schedules
and hands out GPUs; what speaks against beginning; the namespaces that opt in, recorded before they
are changed. Printed by `weft adopt`.
Out: pods: none is changed, restarted or evicted, for their own marks are what Weft reads.
"""
