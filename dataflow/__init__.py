"""The dataflow: SQL to plan, plan to operators, operators over deltas (multisets with weights).

Pure and repeatable: no clock, randomness, threads, sockets or logging. One thread steps a dataflow;
nothing here takes a lock. Invariant: the deltas that a view emits add up to the answer of its query
over the rows taken in so far. Start reading at `plan.nodes`, then `operators.base`.
"""
