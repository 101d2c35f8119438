"""The only package that talks to the Kubernetes API.

Contents: structs of the objects that Weft reads, with only the fields it needs; the API server's
address and credentials, one client with one rate limit, list-watch, the binding of a pod in one
write, leadership by Lease, events and conditions. Not here: what pods and nodes mean (`dialects/`),
what to decide (`core/engine/`), when to send requests (`host/`), and every other protocol.

Nothing is imported here, so that the structs come without the HTTP library.
"""
