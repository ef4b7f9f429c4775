"""Tables of other PostgreSQL databases as sources."""
