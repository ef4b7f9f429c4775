"""Statements that somebody may try to have run as a view, each with the code that refuses it.

None of them may leave anything behind, whatever the role of the service. A code that ends with a
dot stands for any of its kind, "" for any at all: PostgreSQL's own refusals differ by version.
"""

from __future__ import annotations

SCHEMA = """
CREATE TABLE t (id integer PRIMARY KEY, a integer, b text);
INSERT INTO t VALUES (1, 2, 'x');
CREATE TABLE victim (id integer PRIMARY KEY);
INSERT INTO victim VALUES (1);
CREATE SEQUENCE s;
CREATE FUNCTION deletes() RETURNS integer LANGUAGE plpgsql AS
    'BEGIN DELETE FROM victim; RETURN 1; END';
CREATE FUNCTION hides() RETURNS integer LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN RETURN deletes(); END';
CREATE FUNCTION reads_file(x text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN RETURN pg_read_file(x); END';
CREATE VIEW deleting AS SELECT id, deletes() AS d FROM t;
"""
OTHER = "sql."
# Planned or refused, as PostgreSQL understands it: nothing may happen.
UNTOUCHED = "untouched"

HOSTILE: list[tuple[str, str]] = [
    # More than one statement, in every disguise.
    ("SELECT id FROM t; DELETE FROM victim", "sql.many_statements"),
    ("SELECT id FROM t;;DELETE FROM victim;", "sql.many_statements"),
    ("SELECT id FROM t; -- \n DELETE FROM victim", "sql.many_statements"),
    ("SELECT id FROM t /* ; */ ; DELETE FROM victim --", "sql.many_statements"),
    ("SELECT id FROM t /* /* */ ; DELETE FROM victim */", UNTOUCHED),
    ("SELECT id FROM t WHERE b = 'x''; DELETE FROM victim --'", UNTOUCHED),
    ("SELECT id FROM t WHERE b = E'x\\'; DELETE FROM victim --'", UNTOUCHED),
    ("SELECT id FROM t WHERE b = E'x\\\\'; DELETE FROM victim --'", "sql.many_statements"),
    ("SELECT id FROM t WHERE b = $$x$$; DELETE FROM victim", "sql.many_statements"),
    ("SELECT id FROM t WHERE b = $a$x$$; DELETE FROM victim; $a$", UNTOUCHED),
    ("SELECT id FROM t WHERE b = U&'\\0027; DELETE FROM victim'", UNTOUCHED),
    ("SELECT id FROM t) AS x; DELETE FROM victim; SELECT (1", "sql.many_statements"),
    ("SELECT id FROM t); DELETE FROM victim; --", "sql.many_statements"),
    ("SELECT id FROM t WITH CHECK OPTION; DELETE FROM victim", "sql.many_statements"),
    ("SELECT id FROM t WITH LOCAL CHECK OPTION", OTHER),
    ("SELECT id FROM t \\; DELETE FROM victim", "sql.many_statements"),
    ("SELECT id FROM t\x00; DELETE FROM victim", OTHER),
    ("SELECT 1 AS a \\gexec", OTHER),
    # No SELECT at all.
    ("DELETE FROM victim", "sql.not_a_select"),
    ("  /* SELECT */ DELETE FROM victim", "sql.not_a_select"),
    ("-- SELECT\nDROP TABLE victim", "sql.not_a_select"),
    ("DO $$ BEGIN DELETE FROM victim; END $$", "sql.not_a_select"),
    ("COPY victim TO PROGRAM 'touch /tmp/owned'", "sql.not_a_select"),
    ("COPY (SELECT 1) TO '/tmp/owned'", "sql.not_a_select"),
    ("CALL tidemark.drop_view('x')", "sql.not_a_select"),
    ("EXPLAIN ANALYZE DELETE FROM victim", "sql.not_a_select"),
    ("EXECUTE something", "sql.not_a_select"),
    ("PREPARE p AS DELETE FROM victim", "sql.not_a_select"),
    ("SET ROLE postgres", "sql.not_a_select"),
    ("BEGIN", "sql.not_a_select"),
    ("COMMIT AND CHAIN", "sql.not_a_select"),
    ("NOTIFY tidemark", "sql.not_a_select"),
    ("LOCK TABLE victim", "sql.not_a_select"),
    ("CREATE TABLE owned AS SELECT 1", "sql.not_a_select"),
    ("VACUUM victim", "sql.not_a_select"),
    ("TABLE victim; DROP TABLE victim", "sql.many_statements"),
    # A SELECT that is none.
    ("SELECT id INTO owned FROM t", OTHER),
    ("SELECT id INTO TEMP owned FROM t", OTHER),
    ("WITH d AS (DELETE FROM victim RETURNING id) SELECT id FROM d", OTHER),
    ("WITH d AS (INSERT INTO victim VALUES (9) RETURNING id) SELECT id FROM d", OTHER),
    ("WITH d AS (UPDATE victim SET id = 5 RETURNING id) SELECT id FROM t", OTHER),
    ("WITH d AS (SELECT 1) DELETE FROM victim", OTHER),
    ("SELECT id FROM t WHERE EXISTS (DELETE FROM victim RETURNING 1)", OTHER),
    # Maintained without its locks.
    ("SELECT id FROM t FOR UPDATE", UNTOUCHED),
    ("SELECT id FROM t FOR KEY SHARE SKIP LOCKED", UNTOUCHED),
    ("SELECT * FROM (SELECT id FROM t FOR UPDATE) AS x", UNTOUCHED),
    # Functions with effects, and what leads to them.
    ("SELECT id, deletes() AS d FROM t", "sql.volatile_function"),
    ("SELECT id, d FROM deleting", "sql.volatile_function"),
    ("SELECT id FROM t WHERE a = nextval('s')", "sql.volatile_function"),
    ("SELECT id, setval('s', 9) AS d FROM t", "sql.volatile_function"),
    ("SELECT id, set_config('role', 'none', false) AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_sleep(3600)::text AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_terminate_backend(1) AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_read_file('/etc/passwd') AS d FROM t", "sql.volatile_function"),
    ("SELECT id, lo_import('/etc/passwd') AS d FROM t", "sql.volatile_function"),
    ("SELECT id, lo_export(1, '/tmp/owned') AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_ls_dir('/') AS d FROM t", OTHER),
    ("SELECT id, pg_notify('tidemark', 'x')::text AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_advisory_lock(1)::text AS d FROM t", "sql.volatile_function"),
    ("SELECT id, query_to_xml('DELETE FROM victim', true, true, '')::text AS d FROM t", OTHER),
    ("SELECT id, dblink('x', 'y') AS d FROM t", "sql.undefined_function"),
    ("SELECT id, pg_switch_wal()::text AS d FROM t", "sql.volatile_function"),
    ("SELECT id, pg_reload_conf() AS d FROM t", "sql.volatile_function"),
    # Wrapped as immutable: planned, but what runs is read-only. An error row's business.
    ("SELECT id, hides() AS d FROM t", UNTOUCHED),
    ("SELECT id FROM t WHERE hides() = 1", UNTOUCHED),
    # Catalogs, the system's own views, other people's temporary tables.
    ("SELECT rolname FROM pg_authid", "source."),
    ("SELECT rolpassword FROM pg_catalog.pg_authid", "source."),
    ("SELECT usename FROM pg_shadow", ""),
    ("SELECT query FROM pg_stat_activity", ""),
    ("SELECT name, setting FROM pg_settings", ""),
    ("SELECT table_name FROM information_schema.tables", ""),
    ("SELECT hash FROM tidemark.tokens", ""),
    ("SELECT * FROM pg_temp.tidemark_analysis", OTHER),
    ("SELECT * FROM pg_temp_3.x", OTHER),
    # Things that are no rows.
    ("SELECT $1 AS x", OTHER),
    ("SELECT id FROM t WHERE CURRENT OF c", OTHER),
    ("SELECT CASE WHEN a THEN 1 END FROM t", OTHER),
    ("VALUES (DEFAULT)", OTHER),
]
