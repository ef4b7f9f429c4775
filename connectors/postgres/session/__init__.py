"""Sessions with PostgreSQL: connections, settings, quoting, SQLSTATEs, COPY text, positions.

Imports no other package of this connector. Start with `session.py`.
"""
