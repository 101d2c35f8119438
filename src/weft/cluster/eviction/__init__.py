"""Carries out evictions, as disruption budgets allow, and watches for overbooked GPUs.

Contents: the evictor, the preemptor, the overbooking guard, moving one pod. Not here: choosing the
pods (`core/engine/`)."""
