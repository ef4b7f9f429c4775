"""Everything that talks to PostgreSQL: source, sink, catalog, analyzer and evaluator.

Terms: session (one connection), slot, publication, sandbox, lease, base table, view table. Only
this package imports psycopg2.
"""
