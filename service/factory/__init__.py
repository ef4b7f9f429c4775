"""Concrete components made from settings, and definitions made from queries.

May import `backfill` and below. Start with `service_factory.py`: it alone decides which class
implements a contract.
"""
