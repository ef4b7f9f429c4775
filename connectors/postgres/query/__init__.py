"""Queries answered once, rows of views, and sessions that verify a view.

May import `catalog` and below. Start with `one_shot.py`.
"""
