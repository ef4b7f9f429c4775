"""Connectors: where changes come from and where views go. One never imports another."""
