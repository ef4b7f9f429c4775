"""What tests share: databases, services, schemas, changes, oracles."""
