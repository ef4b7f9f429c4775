"""One-shot queries, rows of views, and sessions that verify a view.

Terms: one-shot query (answered once, not maintained), page (rows after a key), comparison (the
view's rows against its query's). May import `catalog` and below. Start with `one_shot.py`.
"""
