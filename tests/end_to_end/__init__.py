"""The real service over a real PostgreSQL, views compared with their queries."""
