"""From the syntax tree of a query to its plan: names, types, scopes, one function for each shape.

May import `parse`. Start with `binder.py`.
"""
