"""The parts of `weft agent`: what a node offers, what its containers are given, what they use.

Contents: the parts, which are classes with `async def run(self)` that runs until it is cancelled
and then cleans up: discovery, delivery, isolation, accounting, watching. Not here: reading GPUs
(`node/devices/`).
"""
