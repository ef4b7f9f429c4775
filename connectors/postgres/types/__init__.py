"""Types of columns as PostgreSQL's catalog has them.

May import `session`. Start with `column_types.py`.
"""
