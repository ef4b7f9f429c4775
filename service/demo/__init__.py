"""`tidemark demo`: a private shop under live traffic, with continuous verification.

May import everything but `cli`. Start with `main_job.py`.
"""
