"""`CALL tidemark....`: requests from psql, executed by the API process.

May import `api` and below. Start with `request_worker.py`.

Terms: an *operation* begins a request and returns a `Poll`, which reports its outcome. A
*wake-up* is the notification with which tidemark.wait asks for a source heartbeat.
"""
