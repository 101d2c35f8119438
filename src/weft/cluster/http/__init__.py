"""HTTP server of every process: silent, slow or excess connections cost next to nothing.

In: ports, TLS, limits of connections and answers, access rules, and metric families in Prometheus'
form. Out: the pages and their answers, and counting them (the processes)."""
