"""The only room that talks to the Kubernetes API.

In: partial structs of what Weft reads, where the API server is and how to prove who asks, one
client with one rate limit, list-watch, the binding of a pod in one write, leadership by Lease,
events and conditions, and a node's GPUs from what others wrote on it. Out: what to decide (that is
`core/engine/`), when to ask (the hosts), and every other protocol.

Nothing is imported here, so that the structs and the inventory come without the HTTP library.
"""
