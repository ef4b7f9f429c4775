"""Rows of Python functions in the form that PostgreSQL's COPY reads.

Terms: a function is a registered callable, iterable or table; a requirement is the columns and
conditions that a query needs of it; a batch is some rows by columns; a spool is one whole reading
on disk.
"""
