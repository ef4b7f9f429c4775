"""REST: routes, authorization of requests, problems, metrics, the console's files.

May import all but the other faces. Start with `app.py`; a view is created in `catalog.py`, and
`routes/` holds one module for each group of routes.
"""
