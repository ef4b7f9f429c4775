"""A view's life cycle, plan, dependencies and names, as the catalog stores them.

Terms: desired and actual status, change (a requested new version or name), group. May import
`engine` and below. Start with `lifecycle.py`, the only module that decides a status.
"""
