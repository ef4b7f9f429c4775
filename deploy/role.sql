-- The role of the service, with no more than it needs. Run by a superuser, in the source database:
--
--   psql -d shop -v role=tidemark -f deploy/role.sql
--
-- Variables: role (tidemark); schemas, where the tables lie that views read, and views, where views
-- are to lie, both with commas between names (public); password (none is set: use pg_hba.conf or
-- \password). Where the views live in another database, run it there too, with -v sink_only=yes.
-- Then, as the role itself: tidemark init "dbname=shop user=tidemark". Running it again is safe.
\set ON_ERROR_STOP on
\if :{?role} \else
\set role tidemark
\endif
\if :{?schemas} \else
\set schemas public
\endif
\if :{?views} \else
\set views public
\endif
\if :{?sink_only} \else
\set sink_only no
\endif

SELECT format('CREATE ROLE %I LOGIN', :'role')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role') \gexec
\if :{?password}
ALTER ROLE :"role" PASSWORD :'password';
\endif

-- Schema tidemark, and the publication.
SELECT format('GRANT CONNECT, CREATE, TEMPORARY ON DATABASE %I TO %I', current_database(), :'role')
\gexec

-- The views' tables.
SELECT format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', trim(name), :'role')
FROM regexp_split_to_table(:'views', ',') AS name \gexec

\if :sink_only \else
-- The replication slot and the stream.
ALTER ROLE :"role" REPLICATION;

SELECT format('GRANT USAGE ON SCHEMA %I TO %I', trim(name), :'role')
FROM regexp_split_to_table(:'schemas', ',') AS name \gexec

-- PostgreSQL lets only a table's owner publish it: the role becomes a member of the owners. A
-- superuser is left out, and so is a member of one, since either would give the role its rights.
SELECT DISTINCT format('GRANT %I TO %I', o.rolname, :'role')
FROM pg_class AS c JOIN pg_roles AS o ON o.oid = c.relowner
WHERE c.relkind IN ('r', 'p') AND o.rolname <> :'role'
    AND NOT EXISTS (SELECT FROM pg_roles AS s WHERE s.rolsuper AND pg_has_role(o.oid, s.oid, 'MEMBER'))
    AND c.relnamespace::regnamespace::text IN (
        SELECT quote_ident(trim(name)) FROM regexp_split_to_table(:'schemas', ',') AS name)
\gexec

SELECT c.oid::regclass AS "owned by a superuser or a member of one: not published by the role",
    format('ALTER TABLE %s OWNER TO ...', c.oid::regclass) AS "to run"
FROM pg_class AS c JOIN pg_roles AS o ON o.oid = c.relowner
WHERE c.relkind IN ('r', 'p') AND o.rolname <> :'role'
    AND EXISTS (SELECT FROM pg_roles AS s WHERE s.rolsuper AND pg_has_role(o.oid, s.oid, 'MEMBER'))
    AND c.relnamespace::regnamespace::text IN (
        SELECT quote_ident(trim(name)) FROM regexp_split_to_table(:'schemas', ',') AS name);
\endif
