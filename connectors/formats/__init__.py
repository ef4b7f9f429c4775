"""Record formats, shared by the connectors that read records: bytes to columns."""
