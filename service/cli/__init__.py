"""The `tidemark` command. Every command is REST, but for serve, init, doctor and restore.

May import everything. Start with `main.py`.
"""
