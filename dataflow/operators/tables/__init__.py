"""Rows stored as they arrived: base tables, and values that must stay as first computed.

`table` turns a source's changes into exact deltas; `remember` and `remember_answers` store results
of functions. May import: the root of dataflow.operators. Start reading at `table`.
"""
