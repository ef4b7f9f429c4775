"""Incremental operators, one a file: deltas in, one consolidated delta out."""
