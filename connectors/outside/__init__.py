"""What comes from outside, and every way out: the one place that each connector passes.

Here are addresses (`address.py`), deadlines (`deadline.py`), bounded reading (`bounded.py`), texts
of others (`texts.py`), and the boundary that turns every exception into an error with a code
(`boundary.py`, and `guarded.py` around whole connectors), and what clients log in with
(`logins.py`, `bucket_login.py`). Terms: outside is every server, file and message that the service
did not write itself. May import `connectors.netguard`, which decides what is allowed,
`connectors.secrets`, the readers of options and `dataflow.errors`; no connector. Start with
`boundary.py`.
"""
