"""HTTP services as a source: REST and GraphQL, polled and compared by key.

`options.py` reads what users declare, `client.py` asks with the guard and the limits, `pages.py`
follows pagination. May import `polled` and `formats`; start with
`source.py`.
"""
