"""The only package that talks to the Kubernetes API.

In: partial structs of the objects that Weft reads, the API server's address and credentials, one
client with one rate limit, list-watch, the binding of a pod in one write, leadership by Lease,
events and conditions. Out: what pods and nodes mean (that is `dialects/`), what to decide (that is
`core/engine/`), when to ask (the hosts), and every other protocol.

Nothing is imported here, so that the structs come without the HTTP library.
"""
