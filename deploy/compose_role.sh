#!/bin/sh
# Runs in the container of PostgreSQL when its cluster is new: the database belongs to the role shop,
# and the service gets a role of its own, which is no superuser.
set -eu
psql -X -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'SQL'
CREATE ROLE shop LOGIN;
ALTER DATABASE shop OWNER TO shop;
\set role tidemark
\set password `printenv SERVICE_PASSWORD`
\i /etc/tidemark/role.sql
-- Tables made later are shop's, too: only a member of their owner may publish them.
GRANT shop TO tidemark;
SQL
