"""`tidemark demo`: a private shop under live traffic, verified all the while.

May import everything but `cli`. Start with `main_job.py`.
"""
