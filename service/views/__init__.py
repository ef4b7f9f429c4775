"""Views from creation to drop. Start reading at lifecycle.py: the states and what moves them.

May import the engine, the planning of queries, the connectors and what they stand on; is imported
by the pipeline and by the faces (api, psql, cli).
"""
