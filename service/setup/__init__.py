"""Checks and first steps before the service runs: `tidemark doctor` and `tidemark init`.

May import `api` and below. Start with `doctor.py`.
"""
