"""Carries evictions out, as disruption budgets allow, and watches for overbooked GPUs.

In: the evictor, the overbooking guard, the move of one pod. Out: who is evicted (`core/engine/`).
"""
