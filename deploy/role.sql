-- The role of the service, with no more than it needs. Run by a superuser, in the source database:
--
--   psql -d shop -v role=tidemark -f deploy/role.sql
--
-- Variables: role (tidemark); schemas, where the tables lie that views read, and views, where views
-- are to lie, both with commas between names (public); password (none is set: use pg_hba.conf or
-- \password). Where the views live in another database, run it there too, with -v sink_only=yes.
-- It makes a second role, tidemark_query, which has no rights: users' functions run as it for views
-- that the service itself owns. Then, as the role itself: tidemark init "dbname=shop user=tidemark".
-- Running it again is safe. For a role that is not to own tables: docs/MANAGED.md.
\set ON_ERROR_STOP on
-- Names below mean PostgreSQL's own, whatever schema public has of them.
SET search_path TO pg_catalog, pg_temp;
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

-- The role without rights. One that is there is made so again: it logs in nowhere, is a member of
-- nothing, and sees nothing of schema tidemark.
SELECT current_setting('server_version_num')::int >= 160000 AS has_grant_options \gset
SELECT 'CREATE ROLE tidemark_query NOLOGIN NOINHERIT'
WHERE to_regrole('tidemark_query') IS NULL \gexec
-- Only where it is needed: on a managed server nobody may say NOSUPERUSER.
SELECT 'ALTER ROLE tidemark_query NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT'
    ' NOREPLICATION NOBYPASSRLS'
FROM pg_roles WHERE rolname = 'tidemark_query' AND (rolcanlogin OR rolsuper OR rolcreatedb
    OR rolcreaterole OR rolinherit OR rolreplication OR rolbypassrls) \gexec
SELECT format('REVOKE %s FROM tidemark_query', m.roleid::regrole)
    || CASE WHEN :'has_grant_options' THEN format(' GRANTED BY %s', m.grantor::regrole) ELSE '' END
FROM pg_auth_members AS m WHERE m.member = 'tidemark_query'::regrole \gexec
SELECT 'REVOKE ALL ON SCHEMA tidemark FROM tidemark_query'
WHERE to_regnamespace('tidemark') IS NOT NULL \gexec
\if :has_grant_options
GRANT tidemark_query TO :"role" WITH INHERIT TRUE, SET TRUE;
\else
GRANT tidemark_query TO :"role";
\endif
SELECT format('GRANT TEMPORARY ON DATABASE %I TO tidemark_query', current_database()) \gexec
SELECT format('GRANT USAGE ON SCHEMA %I TO tidemark_query', trim(name))
FROM regexp_split_to_table(:'views', ',') AS name \gexec

\if :sink_only \else
SELECT format('GRANT USAGE ON SCHEMA %I TO tidemark_query', trim(name))
FROM regexp_split_to_table(:'schemas', ',') AS name \gexec

-- The replication slot and the stream.
SELECT CASE WHEN to_regrole('rds_replication') IS NULL
    THEN format('ALTER ROLE %I REPLICATION', :'role')
    ELSE format('GRANT rds_replication TO %I', :'role') END \gexec

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
