"""What PostgreSQL's analyzer and catalog say of queries and tables.

May import `replication` and below. Start with `analyzer.py`.
"""
