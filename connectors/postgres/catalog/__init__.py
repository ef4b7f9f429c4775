"""The catalog of a service: views, sources, additional sinks, tokens, requests.

May import `sink` and below. Start with `catalog.py`.
"""
