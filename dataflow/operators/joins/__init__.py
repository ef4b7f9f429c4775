"""Joins: inner, outer, semi, anti and NOT IN.

Both sides are kept by key (`pairs`); a change of one meets what the other keeps. `unmatched` says
which rows lose or gain their last match. May import: the root of dataflow.operators. Start
reading at `join`, then `pairs`.
"""
