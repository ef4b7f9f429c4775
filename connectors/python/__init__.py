"""Rows of Python functions: as PostgreSQL's COPY reads them for the embedded engine, and as a
source of the running service (`source.py`), each call in a process of its own (`child.py`).

Terms: a function is a registered callable, iterable or table; a requirement is the columns and
conditions that a query needs of it; a batch is some rows by columns; a spool is one whole reading
on disk.
"""
