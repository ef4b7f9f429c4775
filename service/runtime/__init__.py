"""What every process of the service needs: settings, logs, clock, threads, limits.

Imports only connectors and storage. Start with `settings.py` (what an operator can set) and
`runtime.py` (time, threads and waiting, which the simulation replaces).
"""
