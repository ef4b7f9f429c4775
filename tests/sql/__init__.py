"""Analyzer and planner on real PostgreSQL."""
