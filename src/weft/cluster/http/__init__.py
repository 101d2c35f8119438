"""The HTTP server of every host: silent, slow or superfluous connections cost next to nothing.

In: ports, TLS, limits of connections and answers, and who is let in. Out: what is asked and
answered, and how that is counted (the hosts).
"""
