"""The physical kinds of columns; separate, so that importing their names loads no kernels."""

KIND_INT = "i"
KIND_FLOAT = "f"
KIND_BOOL = "b"
KIND_BYTES = "s"
