-- Lets a role create views by CALL, and drop and change those that it owns. Run by the owner of
-- schema tidemark, or by a superuser, in the sink database, after `tidemark init`:
--
--   psql -d shop -v creators=analysts -f deploy/creators.sql
--
-- Variables: creators, a role; sources (no): yes lets it declare sources too, which reads topics,
-- and files of the service's machine, with the service's rights. Running it again is safe.
\set ON_ERROR_STOP on
-- Names below mean PostgreSQL's own, whatever schema public has of them.
SET search_path TO pg_catalog, pg_temp;
\if :{?sources} \else
\set sources no
\endif

GRANT USAGE ON SCHEMA tidemark TO :"creators";
SELECT format('GRANT EXECUTE ON PROCEDURE %s TO %I', p.oid::regprocedure, :'creators')
FROM pg_proc AS p
WHERE p.pronamespace = 'tidemark'::regnamespace AND p.prokind = 'p'
    AND (p.proname NOT LIKE '%\_source' OR :'sources'::boolean) \gexec
