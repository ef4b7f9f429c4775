"""Incoming changes: the PostgreSQL stream and all external sources.

Terms: feed (an open reader of a source), snapshot offset (where a relation is first read), table
watch (DDL). May import `views` and below. Start with `database_feed.py` and `external_sources.py`.
"""
