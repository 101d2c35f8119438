"""HTTP server of every process: silent, slow or excess connections cost next to nothing.

Contents: ports, TLS, limits of connections and answers, access rules, and metric families in
Prometheus' form. Not here: the pages and answers of each process."""
