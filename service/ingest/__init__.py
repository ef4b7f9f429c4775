"""Incoming changes: the PostgreSQL stream and all external sources.

Terms: feed (an open reader of a source), source worker (the thread that uses it), snapshot offset
(where a relation is first read), table watch (DDL). May import `views` and below. Start with
`database_feed.py` and `external_sources.py`.
"""
