"""Changes on their way in: the PostgreSQL stream and all external sources.

May import `views` and below. Start with `database_feed.py` and `external_sources.py`.
"""
