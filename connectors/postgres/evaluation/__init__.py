"""Expressions evaluated by PostgreSQL, and the sandbox in which users' text runs.

May import `session` and `types`. Start with `evaluator.py` and `sandbox.py`.
"""
