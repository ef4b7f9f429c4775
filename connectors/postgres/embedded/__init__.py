"""A private PostgreSQL server, and what an embedded engine stores in it.

Terms: function table (a table filled by a Python function), reading (the rows of one call),
stand-in (a temporary table in place of a function table for one query). May import `query` and
below. Start with `server.py`.
"""
