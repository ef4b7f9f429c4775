"""Verification and estimates: a view compared with PostgreSQL, and what a view would cost.

May import `checkpoint` and below. Start with `comparison.py` and `estimate.py`.
"""
