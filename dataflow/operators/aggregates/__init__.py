"""Aggregates: GROUP BY, DISTINCT, and set operations, which count the rows of a key like groups.

Fixed-width sums are one vector per group (`linear`). Other numbers have exact sums (`sparse_sums`
and a module for each family). min, max and percentiles store values. May import: the root of
dataflow.operators and `ordered`. Start reading at `aggregate`, then `linear`.
"""
