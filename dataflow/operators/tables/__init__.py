"""Rows that are kept as they came: base tables, and values that must stay as first computed.

`table` makes exact deltas of a source's changes; `remember` and `remember_answers` keep what a
function gave. May import: the root of dataflow.operators. Start reading at `table`.
"""
