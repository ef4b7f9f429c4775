"""Concrete parts made from settings, and definitions made from queries.

May import `backfill` and below. Start with `service_factory.py`: it alone decides which class
stands behind a contract.
"""
