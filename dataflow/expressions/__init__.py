"""Scalar expressions: typed by PostgreSQL, computed over whole columns by native kernels, or by
PostgreSQL itself in batches where there is no kernel. May import storage, `dataflow.types`,
`values` and `errors`. Start reading at `ir`, then `compile` and `frame`."""

import storage  # noqa: F401  # Checks the version of the kernels before any is imported.
