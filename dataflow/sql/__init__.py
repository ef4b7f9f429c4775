"""From PostgreSQL's canonical SQL to a plan, and from a plan to nodes."""
