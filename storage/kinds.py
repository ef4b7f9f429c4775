"""The physical kinds of columns; apart, so that whoever only names them loads no kernels."""

KIND_INT = "i"
KIND_FLOAT = "f"
KIND_BOOL = "b"
KIND_BYTES = "s"
