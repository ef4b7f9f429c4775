"""Additional sinks of a view: one worker thread each, fed from the outbox.

Terms: sink worker (the thread), route (what it writes where), reached (its newest epoch), removal
(deletion of what a sink has written). May import `factory` and below. Start with `sink_workers.py`.
"""
