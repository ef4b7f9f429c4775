"""Sessions with PostgreSQL: connections, settings, quoting, SQLSTATEs, COPY text, positions.

Terms: session (a psycopg2 connection with pinned settings), watchdog (ends calls that a silent
server will never answer), LSN (a WAL position), timeline. Imports no other package of this
connector. Start with `session.py`.
"""
