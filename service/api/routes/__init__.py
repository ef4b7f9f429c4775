"""REST routes: thin adapters. Responses and refusals come from the modules of `service.api`."""
