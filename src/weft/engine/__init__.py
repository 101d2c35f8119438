"""A pure state machine: `handle(event, now) -> commands`. No clock, no I/O, no randomness.

In: the queue and its back-off, the scheduling cycle, decision records, explanations.
Out: the world (hosts drive the engine and carry out its commands), and any strategy.
"""
