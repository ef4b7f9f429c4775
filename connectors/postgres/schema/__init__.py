"""Schema "tidemark" in the sink: made, upgraded, guarded, and written under a lease.

The .sql files are the steps from version to version. May import `evaluation` and below. Start
with `schema_setup.py`; `view_status.py` alone writes a view's status.
"""
