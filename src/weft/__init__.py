"""Weft: GPU sharing for Kubernetes."""

__version__ = "0.2.0"
