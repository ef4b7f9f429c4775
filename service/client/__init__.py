"""The Python client of a running service: each call is described once, for two senders.

`import tidemark` is its public name. Invariant: nothing here imports the service, so that a client
program loads neither numpy nor the engine.

Terms: a *call* describes a request and how to read its response; a *sender* (Client, AsyncClient)
sends it. A *record* is a response as a frozen dataclass. An *epoch* is a set of changes that became
visible together; a *marker* closes it and carries a resume token.
"""
