"""ClickHouse as a source: tables and queries, compared by key, or read above a cursor.

`options.py` reads what users declare, `client.py` runs queries over HTTP, `column_types.py` says
how values of each type are read. May import `polled` and `formats`; start with `source.py`.
"""
