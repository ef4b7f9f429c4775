"""Tokens, operations and the one decision that authorizes a caller.

Terms: caller (a token or a psql session), API role, database role, operation, need. May import
`factory` and below. Start with `authorization.py`.
"""
