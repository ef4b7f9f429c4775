"""Subscriptions: the log of a view's changes, and its readers.

Terms: change log (a view's epochs in files), progress marker (the line that closes an epoch),
resume token, feed (a log that an API process is reading). The pipeline writes logs
(`change_log_writers.py`), API processes read them (start with `subscriptions.py`). May import
`sinks` and below.
"""
