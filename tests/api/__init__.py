"""REST: refusals, codes, positions."""
