"""The parts of `weft agent`: what a node offers, what its containers are given, what they use.

In: parts, each a class with `async def run(self)` that runs until it is cancelled and then cleans
up: discovery, delivery, isolation, accounting, watching. Out: reading GPUs (`node/devices/`).
"""
