"""Checks and preparation before the service runs: `tidemark doctor` and `tidemark init`.

May import `api` and below. Start with `doctor.py`.

Terms: a *check* is one requirement of a database with its fix. A *step* is a check after init's
work on it. A *finding* is one result of the doctor.
"""
