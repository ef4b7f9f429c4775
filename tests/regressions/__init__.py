"""Cases that once failed, each a file."""
