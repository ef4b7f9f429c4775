"""A private PostgreSQL server, and what an embedded engine keeps in it.

May import `query` and below. Start with `server.py`.
"""
