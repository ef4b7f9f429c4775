"""The REST API: routes, authorization of requests, problems, metrics, the console's files.

May import every package of the service except the other interfaces (psql, client, cli).
Start with `app.py`. `catalog.py` creates views; `routes/` has one module per group of routes.

Terms: a *problem* is an error in the form of RFC 9457. A *standing* is the status of a view, a
source or the service, with the reason; `health.py` alone decides it.
"""
