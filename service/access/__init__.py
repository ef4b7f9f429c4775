"""Who may do what: tokens, operations and the one decision that authorizes them.

May import `factory` and below. Start with `authorization.py`.
"""
