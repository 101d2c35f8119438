"""The strategies, one file each. A policy answers queries with arrays; it holds no accounts."""
