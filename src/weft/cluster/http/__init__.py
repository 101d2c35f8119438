"""HTTP server of every process: silent, slow or excess connections cost next to nothing.

The package contains ports, TLS, limits of connections and answers, access rules, and metric
families in Prometheus' form. Each process makes its own pages and answers, and counts them."""
