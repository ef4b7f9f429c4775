"""Subscriptions: the log of a view's changes, and its readers.

The pipeline writes the log (`change_log_writers.py`), API processes read it
(`subscriptions.py`, where to start). May import `sinks` and below.
"""
