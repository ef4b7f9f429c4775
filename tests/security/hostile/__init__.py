"""Attacks on the service by a plain role of its database, with the service as a superuser and as a
role of its own. Start with `ground`: who is who, and how an attack that succeeds is seen."""
