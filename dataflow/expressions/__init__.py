"""Scalar expressions: typed by PostgreSQL, computed by columns or sent there in batches."""
