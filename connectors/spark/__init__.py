"""Spark: the session and the distributed backfill, with the stream's own operators."""
