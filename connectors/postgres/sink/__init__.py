"""Views as PostgreSQL tables: one transaction an epoch, with rows, errors and progress.

May import `snapshot` and below. Start with `postgres_sink.py`.
"""
