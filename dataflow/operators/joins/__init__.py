"""Joins: inner, outer, semi, anti and NOT IN.

Both inputs are arranged by key (`pairs`); a delta of one joins the arrangement of the other.
`unmatched` finds the rows that lose their last match or gain their first. May import: the root of
dataflow.operators. Start reading at `join`, then `pairs`.
"""
