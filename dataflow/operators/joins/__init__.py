"""Joins: inner, outer, semi, anti, NOT IN and as-of.

Both inputs are arranged by key (`pairs`), and in order where a value of one lies between two of the
other (`interval_pairs`); a delta of one joins the arrangement of the other. `unmatched` finds the
rows that lose their last match or gain their first. May import: the root of dataflow.operators, and
`ordered`. Start reading at `join`, then `pairs`.
"""
