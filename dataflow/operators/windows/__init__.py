"""Window functions: whole partitions recomputed, or only the rows that a change can affect.

`window_reach` decides which; frames, values and sums have a module each. May import: the root of
dataflow.operators, `ordered` and `aggregates`. Start reading at `window`, then `window_follow`.
"""
