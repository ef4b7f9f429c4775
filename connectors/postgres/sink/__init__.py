"""Views as PostgreSQL tables: one transaction per epoch, with rows, errors and progress.

Terms: target (a physical table), staged table (the hidden one that a view's initial rows are loaded
into), wide key (too long for a B-tree), carry-over (users' grants, comments and indexes on the next
table), cut-over. May import `snapshot` and below. Start with `postgres_sink.py`.
"""
