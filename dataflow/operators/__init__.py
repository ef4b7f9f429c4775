"""Incremental operators: deltas in, one consolidated delta out.

Here: the contract (`base`), shared helpers (`groups`, `chunking`), and the small operators (filter,
project, union all, values, single row, set-returning functions). `joins`, `ordered`, `aggregates`,
`windows`, `recursion` and `tables` are packages. May import dataflow.plan and everything below it,
and storage; never dataflow.sql, which lowers a plan to operators. Start reading at `base`, then
`joins/join`.
"""

import storage  # noqa: F401  # Checks the version of the kernels before any is imported.
