"""Window functions: whole partitions computed again, or followed by what a change can reach.

`window_reach` decides which; frames, values and sums have a module each. May import: the root of
dataflow.operators, `ordered` and `aggregates`. Start reading at `window`, then `window_follow`.
"""
