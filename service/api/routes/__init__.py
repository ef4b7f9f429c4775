"""REST routes, thin: every answer and every refusal comes from `service.api.catalog`."""
