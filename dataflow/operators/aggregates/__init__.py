"""Aggregates: GROUP BY, DISTINCT, and set operations, which count rows of a key as groups do.

What can be added up is one vector of sums a group (`linear`); other numbers have exact sums
(`sparse_sums` and a module for each family); min, max and percentiles keep values. May import: the
root of dataflow.operators and `ordered`. Start reading at `aggregate`, then `linear`.
"""
