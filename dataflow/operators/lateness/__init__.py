"""Lateness: how far the rows of a column have come, which rows come late, which windows are closed.

These operators depend on the order in which rows come, unlike all others: their state is durable
before a sink sees what they decided. May import: the root of dataflow.operators, and `ordered`.
Start reading at `watermark`, then `late_rows`, then `final_rows`.
"""
