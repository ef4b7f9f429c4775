"""The objects of a database that a query's meaning rests on, besides its tables.

A view's plan contains what PostgreSQL has of them while it analyzes the query: ordinary views at
any depth, functions, types, operators, collations, casts, expressions of generated columns. They
are found along pg_depend, as PostgreSQL itself records them. The bodies of functions are text, for
which nothing is recorded: there every object counts that one of their words may mean. Invariant:
`content` differs whenever an object may give other values, and never by its owner, its rights, its
comment or its statistics. Built-in objects are left out: they do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

FIRST_USERS_OID = 16384
# The catalogs of the objects, in the order of the statement's arrays.
CATALOGS = (
    *("pg_proc", "pg_type", "pg_class", "pg_operator", "pg_collation", "pg_attrdef", "pg_cast"),
)

# Follows columns to their types; a row as a whole has all of its table's columns.
_USED = """
WITH RECURSIVE used (class, id) AS (
  SELECT 'pg_rewrite'::regclass::oid, r.oid FROM pg_rewrite r WHERE r.ev_class = %(view)s
  UNION
  SELECT found.class, found.id FROM used u CROSS JOIN LATERAL (
    SELECT d.refclassid, d.refobjid FROM pg_depend d
    WHERE d.classid = u.class AND d.objid = u.id AND d.refclassid IN (
      'pg_proc'::regclass, 'pg_type'::regclass, 'pg_operator'::regclass, 'pg_collation'::regclass)
    UNION ALL
    SELECT part.class, part.id FROM pg_depend d
    JOIN pg_class c ON c.oid = d.refobjid AND c.relpersistence <> 't'
      AND c.oid <> ALL (ARRAY(SELECT m.oid FROM pg_class m JOIN pg_namespace n
        ON n.oid = m.relnamespace WHERE (n.nspname, m.relname) IN (
          SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))))
    LEFT JOIN pg_rewrite whole ON u.class = 'pg_rewrite'::regclass AND whole.oid = u.id
      AND d.refobjsubid = 0 AND whole.ev_action::text LIKE '%%:varattno 0 %%'
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attnum = d.refobjsubid OR whole.oid IS NOT NULL)
    LEFT JOIN pg_attrdef e ON e.adrelid = c.oid AND e.adnum = a.attnum AND a.attgenerated <> ''
    CROSS JOIN LATERAL (VALUES
      ('pg_class'::regclass::oid, CASE WHEN c.relkind = 'v' THEN c.oid END),
      ('pg_type'::regclass::oid, a.atttypid), ('pg_collation'::regclass::oid, a.attcollation),
      ('pg_attrdef'::regclass::oid, e.oid)) AS part (class, id)
    WHERE d.classid = u.class AND d.objid = u.id AND d.refclassid = 'pg_class'::regclass
      AND c.oid <> %(view)s
    UNION ALL
    SELECT 'pg_rewrite'::regclass, r.oid FROM pg_rewrite r
    WHERE u.class = 'pg_class'::regclass AND r.ev_class = u.id
    UNION ALL
    SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k
    WHERE u.class = 'pg_type'::regclass AND k.contypid = u.id
    UNION ALL
    SELECT part.class, part.id FROM pg_type t
    JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    CROSS JOIN LATERAL (VALUES ('pg_type'::regclass::oid, a.atttypid),
      ('pg_collation'::regclass::oid, a.attcollation)) AS part (class, id)
    WHERE u.class = 'pg_type'::regclass AND t.oid = u.id AND t.typrelid <> 0
    UNION ALL
    SELECT 'pg_cast'::regclass, k.oid FROM pg_cast k
    WHERE u.class = 'pg_proc'::regclass AND k.castfunc = u.id
    UNION ALL
    SELECT named.class, named.id FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    CROSS JOIN LATERAL regexp_split_to_array(lower(p.prosrc), '[^[:alnum:]_$]+') AS words
    CROSS JOIN LATERAL (
      SELECT 'pg_proc'::regclass::oid, q.oid FROM pg_proc q
      WHERE q.oid >= %(first)s AND lower(q.proname) = ANY (words)
      UNION ALL
      SELECT 'pg_type'::regclass, t.oid FROM pg_type t
      WHERE t.oid >= %(first)s AND t.typtype IN ('c', 'd', 'e', 'r')
        AND lower(t.typname) = ANY (words)
      UNION ALL
      SELECT 'pg_operator'::regclass, o.oid FROM pg_operator o
      WHERE o.oid >= %(first)s AND strpos(p.prosrc, o.oprname) > 0
    ) AS named (class, id)
    WHERE u.class = 'pg_proc'::regclass AND p.oid = u.id
      AND l.lanname NOT IN ('c', 'internal')
  ) AS found (class, id)
  WHERE found.id >= %(first)s
)
SELECT u.class::regclass::text, u.id::bigint, EXISTS (
  SELECT FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class = %(view)s
  WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = u.class AND d.refobjid = u.id)
FROM used u WHERE u.class NOT IN ('pg_rewrite'::regclass, 'pg_constraint'::regclass)
"""
# PostgreSQL's trees of expressions also say where they stood in a text.
_PLACES = "' :(location|stmt_location|stmt_len) -?[0-9]+'"
_CONTENTS = f"""
WITH given (class, id) AS (SELECT * FROM unnest(%s::regclass[]::oid[], %s::oid[])),
contents (class, id, content, oids, labels) AS (
  SELECT 'pg_proc'::regclass, p.oid, concat(regexp_replace((to_jsonb(p) - ARRAY['proname',
      'pronamespace', 'proowner', 'proacl', 'procost', 'prorows', 'proparallel', 'prosupport',
      'proleakproof'])::text, {_PLACES}, '', 'g'),
    (SELECT ROW(a.aggkind, a.aggnumdirectargs, a.aggtransfn::oid, a.aggfinalfn::oid,
      a.aggcombinefn::oid, a.aggmtransfn::oid, a.aggminvtransfn::oid, a.aggmfinalfn::oid,
      a.aggfinalextra, a.aggmfinalextra, a.aggsortop, a.aggtranstype, a.aggmtranstype,
      a.agginitval, a.aggminitval)::text FROM pg_aggregate a WHERE a.aggfnoid = p.oid)),
    NULL::oid[], NULL::text[]
  FROM given g JOIN pg_proc p ON p.oid = g.id WHERE g.class = 'pg_proc'::regclass
  UNION ALL
  SELECT 'pg_type'::regclass, t.oid, concat(ROW(t.typtype, t.typlen, t.typbasetype, t.typtypmod,
      t.typnotnull, t.typndims, t.typelem, t.typcollation, t.typdelim, t.typinput::oid,
      t.typoutput::oid),
    (SELECT array_agg(ROW(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation)
       ORDER BY a.attnum) FROM pg_attribute a
     WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT ROW(r.rngsubtype, r.rngcollation, r.rngsubopc, r.rngcanonical::oid)
     FROM pg_range r WHERE r.rngtypid = t.oid),
    (SELECT string_agg(regexp_replace(k.conbin::text, {_PLACES}, '', 'g'), ' ' ORDER BY k.oid)
     FROM pg_constraint k WHERE k.contypid = t.oid)),
    e.oids, e.labels
  FROM given g JOIN pg_type t ON t.oid = g.id CROSS JOIN LATERAL (
    WITH RECURSIVE part (oid) AS (
      SELECT t.oid
      UNION
      SELECT below.oid FROM part JOIN pg_type p ON p.oid = part.oid CROSS JOIN LATERAL (
        SELECT p.typbasetype UNION ALL SELECT p.typelem WHERE p.typlen = -1
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE p.oid IN (r.rngtypid, r.rngmultitypid)
      ) AS below (oid)
    )
    SELECT array_agg(e.oid ORDER BY e.enumsortorder) AS oids,
      array_agg(e.enumlabel::text ORDER BY e.enumsortorder) AS labels
    FROM pg_enum e WHERE e.enumtypid IN (SELECT part.oid FROM part)
  ) AS e WHERE g.class = 'pg_type'::regclass
  UNION ALL
  SELECT 'pg_class'::regclass, c.oid, regexp_replace(r.ev_action::text, {_PLACES}, '', 'g'),
    NULL, NULL
  FROM given g JOIN pg_class c ON c.oid = g.id JOIN pg_rewrite r ON r.ev_class = c.oid
    AND r.ev_type = '1' WHERE g.class = 'pg_class'::regclass
  UNION ALL
  SELECT 'pg_operator'::regclass, o.oid,
    ROW(o.oprcode::oid, o.oprleft, o.oprright, o.oprresult)::text, NULL, NULL
  FROM given g JOIN pg_operator o ON o.oid = g.id WHERE g.class = 'pg_operator'::regclass
  UNION ALL
  SELECT 'pg_collation'::regclass, k.oid, (to_jsonb(k) - ARRAY['collname', 'collnamespace',
    'collowner', 'collversion'])::text, NULL, NULL
  FROM given g JOIN pg_collation k ON k.oid = g.id WHERE g.class = 'pg_collation'::regclass
  UNION ALL
  SELECT 'pg_attrdef'::regclass, d.oid,
    concat(a.attgenerated, regexp_replace(d.adbin::text, {_PLACES}, '', 'g')), NULL, NULL
  FROM given g JOIN pg_attrdef d ON d.oid = g.id
  JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  WHERE g.class = 'pg_attrdef'::regclass
  UNION ALL
  SELECT 'pg_cast'::regclass, k.oid,
    ROW(k.castsource, k.casttarget, k.castfunc, k.castcontext, k.castmethod)::text, NULL, NULL
  FROM given g JOIN pg_cast k ON k.oid = g.id WHERE g.class = 'pg_cast'::regclass
)
SELECT c.class::text, c.id::bigint, i.type, i.identity, md5(c.content), c.oids::bigint[], c.labels
FROM contents c CROSS JOIN LATERAL pg_identify_object(c.class, c.id, 0) AS i
-- It answers as of now: nothing for what was dropped after the snapshot.
WHERE i.identity IS NOT NULL ORDER BY 1, 2
"""
# The versions of their catalog rows, and those of the rows that belong to them. A transaction that
# changes a row marks it with its own number (xmax) and is waited for, as it may be committing.
VERSIONS = """
SELECT sum(hash_record_extended(ROW(v.kind, v.oid, v.version, v.schema_version), 6)),
  array_agg(v.changed_by) FILTER (WHERE v.changed_by <> '0'::xid)
FROM (
  SELECT 0, p.oid, p.xmin, n.xmin, p.xmax FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = ANY ($1::oid[])
  UNION ALL
  SELECT 1, a.aggfnoid::oid, a.xmin, '0', a.xmax FROM pg_aggregate a
  WHERE a.aggfnoid = ANY ($1::oid[])
  UNION ALL
  SELECT 2, t.oid, t.xmin, n.xmin, t.xmax FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY ($2::oid[])
  UNION ALL
  SELECT 3, e.oid, e.xmin, '0', e.xmax FROM pg_enum e WHERE e.enumtypid = ANY ($2::oid[])
  UNION ALL
  SELECT 4, k.oid, k.xmin, '0', k.xmax FROM pg_constraint k WHERE k.contypid = ANY ($2::oid[])
  UNION ALL
  SELECT 5, r.rngtypid, r.xmin, '0', r.xmax FROM pg_range r WHERE r.rngtypid = ANY ($2::oid[])
  UNION ALL
  SELECT 6 + a.attnum::int, a.attrelid, a.xmin, '0', a.xmax FROM pg_attribute a
  WHERE a.attnum > 0 AND a.attrelid = ANY (ARRAY(SELECT t.typrelid FROM pg_type t
    WHERE t.oid = ANY ($2::oid[]) AND t.typrelid <> 0))
  UNION ALL
  SELECT -1, c.oid, c.xmin, '0', c.xmax FROM pg_class c WHERE c.oid = ANY ($3::oid[])
  UNION ALL
  SELECT -2, r.oid, r.xmin, '0', r.xmax FROM pg_rewrite r WHERE r.ev_class = ANY ($3::oid[])
  UNION ALL
  SELECT -3, o.oid, o.xmin, n.xmin, o.xmax FROM pg_operator o
  JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = ANY ($4::oid[])
  UNION ALL
  SELECT -4, k.oid, k.xmin, n.xmin, k.xmax FROM pg_collation k
  JOIN pg_namespace n ON n.oid = k.collnamespace WHERE k.oid = ANY ($5::oid[])
  UNION ALL
  SELECT -5, d.oid, d.xmin, '0', d.xmax FROM pg_attrdef d WHERE d.oid = ANY ($6::oid[])
  UNION ALL
  SELECT -6, k.oid, k.xmin, '0', k.xmax FROM pg_cast k WHERE k.oid = ANY ($7::oid[])
) AS v (kind, oid, version, schema_version, changed_by)
"""


@dataclass(frozen=True)
class UsedObject:
    """An object as it was when a query was analyzed.

    catalog, oid: its row. kind, name: in PostgreSQL's words. content: a digest of what it means.
    labels: by oid, in their order, of an enum, or of a type whose values consist only of those of
    an enum: arrays, domains and ranges of it. is_direct: the query itself names it.
    """

    catalog: str
    oid: int
    kind: str
    name: str
    content: str
    labels: tuple[tuple[int, str], ...] = ()
    is_direct: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Return what identifies it within its database."""
        return self.catalog, self.oid


def read_used(
    cursor: Any, view: int, without: Iterable[tuple[str, str]] = ()
) -> tuple[UsedObject, ...]:
    """Return the objects that an ordinary view's query rests on. psycopg2.Error.

    without: schema and name of relations that are no part of the query, such as maintained views.
    """
    pairs = list(without)
    schemas, names = [schema for schema, _ in pairs], [name for _, name in pairs]
    facts = {"view": view, "schemas": schemas, "names": names, "first": FIRST_USERS_OID}
    cursor.execute(_USED, facts)
    is_direct = {(catalog, oid): direct for catalog, oid, direct in cursor.fetchall()}
    found = read_objects(cursor, is_direct)
    return tuple(replace(o, is_direct=is_direct[o.key]) for o in found)


def read_objects(cursor: Any, keys: Iterable[tuple[str, int]]) -> tuple[UsedObject, ...]:
    """Return these objects as they are now; dropped ones are absent. psycopg2.Error."""
    requested = sorted(set(keys))
    if not requested:
        return ()
    catalogs, oids = [c for c, _ in requested], [oid for _, oid in requested]
    cursor.execute(_CONTENTS, (catalogs, oids))
    return tuple(
        UsedObject(
            *(catalog, oid, kind, name, content),
            tuple(zip(numbers or (), labels or (), strict=True)),
        )
        for catalog, oid, kind, name, content, numbers, labels in cursor.fetchall()
    )


def by_catalog(keys: Iterable[tuple[str, int]]) -> tuple[list[int], ...]:
    """Return oids in the order of `CATALOGS`, as `VERSIONS` takes them."""
    found: dict[str, set[int]] = {catalog: set() for catalog in CATALOGS}
    for catalog, oid in keys:
        found[catalog].add(oid)
    return tuple(sorted(oids) for oids in found.values())


def keys_of(objects: Sequence[UsedObject]) -> set[tuple[str, int]]:
    """Return what identifies these objects."""
    return {used.key for used in objects}
