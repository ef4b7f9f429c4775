"""Operators against batch evaluation, over random plans and deltas."""
