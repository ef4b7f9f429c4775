"""Operators one by one."""
