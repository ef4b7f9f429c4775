"""The field: each peer in an environment of its own, on the same rows."""
