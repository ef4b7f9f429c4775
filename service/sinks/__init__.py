"""Additional sinks of a view: a worker thread each, fed from the outbox.

May import `factory` and below. Start with `sink_workers.py`.
"""
