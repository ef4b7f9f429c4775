"""Rows of Python functions as PostgreSQL's COPY takes them."""
