"""Carries out evictions, as disruption budgets allow, and watches for overbooked GPUs.

In: the evictor, the preemptor, the overbooking guard, moving one pod. Out: choosing the pods
(`core/engine/`)."""
