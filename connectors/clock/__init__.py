"""The clock: time as a relation of one row, so that now() moves in views.

Imports the contracts of `connectors` and the dataflow's deltas. Start with `source.py`.
"""
