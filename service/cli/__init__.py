"""The `tidemark` command. All commands use REST except serve, demo, init, doctor and restore.

May import everything. Start with `main.py`.
"""
