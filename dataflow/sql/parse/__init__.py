"""PostgreSQL's canonical text of a query as a tree.

Imports no other package of `dataflow.sql`. Start with `canonical_form.py`.
"""
