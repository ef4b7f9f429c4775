"""Expressions evaluated by PostgreSQL, and the sandbox in which users' text runs.

Terms: frame (a SECURITY DEFINER function that runs a user's text), QUERY_ROLE (the role without
rights), restricted table (one that other roles control, read through the sandbox). May import
`session` and `types`. Start with `evaluator.py` and `sandbox.py`.
"""
