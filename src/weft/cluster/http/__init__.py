"""The HTTP server of every host: silent, slow or superfluous connections cost next to nothing.

In: ports, TLS, limits of connections and answers, who is let in, and metric families as
Prometheus asks for them. Out: what is asked and answered, and how that is counted (the hosts).
"""
