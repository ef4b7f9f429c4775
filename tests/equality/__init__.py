"""Views against PostgreSQL's own answers."""
