"""`CALL tidemark....`: requests from psql, carried out by the API process.

May import `api` and below. Start with `request_worker.py`.
"""
