"""Names of the sessions and channels by which the service's processes wake each other.

They are alone here, since the embedded engine's user listens without all that writes the catalog.
"""

CHANNEL = "tidemark"
# The prefix of a service that sets none.
DEFAULT_SERVICE = "tidemark"
# The channel of requests, and the name of the session that `tidemark.ring` cancels.
# The second is what the released functions look for: its text stays.
REQUESTS, WAKE_UP = "tidemark_requests", "tidemark doorbell"
