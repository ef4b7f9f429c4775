"""Parsing of PostgreSQL's canonical query text (pg_get_viewdef) into a syntax tree.

Imports no other package of `dataflow.sql`. Start with `canonical_form.py`.
"""
