"""Benchmarks: each figure is measured next to its peer in the same run (`python -m bench`)."""
