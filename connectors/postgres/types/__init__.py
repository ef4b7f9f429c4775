"""Column types as PostgreSQL's catalog describes them.

Terms: bytewise (equality of values is equality of bytes), opaque (only PostgreSQL compares it). May
import `session`. Start with `column_types.py`.
"""
