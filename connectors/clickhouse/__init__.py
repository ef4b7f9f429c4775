"""ClickHouse as a source and as a sink of views.

The source reads tables and queries, compared by key or above a cursor: `options.py` reads what
users declare, `client.py` runs queries over HTTP, `column_types.py` says how values of each type
are read; start with `source.py`. The sink writes a view to tables, so that a repeated write changes
nothing; start with `clickhouse_sink.py`. May import `polled`, `formats` and `lake`.
"""
