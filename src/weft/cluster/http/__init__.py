"""HTTP server of every process: silent, slow or excess connections cost next to nothing.

In: this package has ports, TLS, limits of connections and answers, access rules, and metric
families in Prometheus' form. Out: the processes make their own pages and answers, and count
them."""
