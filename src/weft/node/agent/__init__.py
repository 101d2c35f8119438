"""The host behind `weft agent`: what a node offers, what its containers are given, what they use.

In: parts, each a class with `async def run(self)` that runs until it is cancelled and cleans up
behind itself: discovery, delivery, isolation, accounting, watching.
Out: reading GPUs (`node/devices/`).
"""
