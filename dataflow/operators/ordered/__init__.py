"""Rows in order: a B+-tree in arrangements for each partition (decision 9), and top-k over it.

`row_order` and `ordering` say which row comes first, `ordered_rows` finds rows by position and
position by row. May import: the root of dataflow.operators. Start reading at `ordered_rows`, then
`top_k`.
"""
