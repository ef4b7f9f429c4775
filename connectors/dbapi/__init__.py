"""Queries of any database with a Python module of the DB-API (PEP 249) as a source.

Each relation is a query that is run by interval and compared by key. `options.py` reads what users
declare, `values.py` turns Python values into records. May import `polled` and `formats`; start with
`source.py`.
"""
