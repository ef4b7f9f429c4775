"""Verification and estimates: a view compared with PostgreSQL, and what a view would cost.

Terms: promise (the query that a view must answer), open result (PostgreSQL may answer either way),
footprint (rows and bytes of each plan part). May import `checkpoint` and below. Start with
`comparison.py` and `estimate.py`.
"""
