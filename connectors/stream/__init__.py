"""Live streams as a source: WebSockets and server-sent events.

`options.py` reads what users declare, `websocket.py` and `server_events.py` hold a connection,
`inbox.py` keeps one open in a thread, `messages.py` turns messages into rows, `row_log.py` has the
rows as notes of the state, `feed.py` delivers them. May import `polled` and `formats`; start with
`source.py`.
"""
