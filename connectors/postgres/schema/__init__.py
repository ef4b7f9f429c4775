"""Schema "tidemark" in the sink: created, upgraded, guarded, and written under a lease.

Terms: control table, migration step (a .sql file, from version to version), lease, fence, target
(the physical table of a view), foreign object (another role's code on a view's table). May import
`evaluation` and below. Start with `schema_setup.py`; only `view_status.py` writes a view's status.
"""
