"""Incremental operators: deltas in, one consolidated delta out.

Here: the contract (`base`), what all share (`groups`, `shares`), and the small operators (filter,
project, union all, values, a single row, functions of sets). A package each for `joins`,
`ordered`, `aggregates`, `windows`, `recursion` and `tables`. May import: dataflow.plan and what is
below it, and storage; nothing of dataflow.sql, which lowers a plan to operators. Start reading at
`base`, then `joins/join`.
"""
