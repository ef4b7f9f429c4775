"""What is known of a view: its life cycle, its plan, its dependencies, its names.

May import `engine` and below. Start with `lifecycle.py`, the one place that decides a status.
"""
