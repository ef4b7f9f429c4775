"""Building a view: snapshot, local or Spark backfill, initial load, catch-up.

May import `ingest` and below. Start with `view_build.py`; `run_backfill.py` is the child process.
"""
