-- Late rows and watermarks: what operators note beside the rows left out because they fail.

CREATE TABLE tidemark.notes (
    hash uuid PRIMARY KEY,
    count bigint NOT NULL,
    view text,
    operator text,
    sqlstate text,
    message text,
    source_row text,
    first_seen timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON tidemark.notes (view);
COMMENT ON TABLE tidemark.notes IS 'See tidemark.late_rows and tidemark.watermarks';

CREATE VIEW tidemark.late_rows WITH (security_barrier) AS
SELECT v.schema, v.name, n.message AS "column",
    CASE n.sqlstate WHEN 'TML01' THEN 'left out' WHEN 'TML05' THEN 'frozen' ELSE 'applied' END
        AS outcome,
    n.source_row, n.count, n.first_seen
FROM tidemark.notes AS n JOIN tidemark.views AS v ON n.view = v.schema || '.' || v.name
WHERE n.sqlstate IN ('TML01', 'TML02', 'TML05') AND tidemark.is_for(v.created_by, NULL);
COMMENT ON VIEW tidemark.late_rows IS
    'Rows that came later than the lateness of a column allows, of the views that you own';
COMMENT ON COLUMN tidemark.late_rows.outcome IS
    'applied: the view has it; left out: it has not, and the row goes from here when it is deleted; '
    'frozen: a row that came or went in a frozen window, as its aggregate reads it';

CREATE VIEW tidemark.watermarks WITH (security_barrier) AS
SELECT v.schema, v.name, n.message AS "column",
    timestamptz '2000-01-01 00:00:00+00'
        + btrim(n.source_row, '()')::bigint * interval '1 microsecond' AS watermark,
    n.first_seen AS moved_at
FROM tidemark.notes AS n JOIN tidemark.views AS v ON n.view = v.schema || '.' || v.name
LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
WHERE n.sqlstate = 'TML03'
    AND tidemark.is_for(v.created_by, coalesce(t.view_oid, t.table_oid)::regclass);
COMMENT ON VIEW tidemark.watermarks IS
    'Up to where the rows of a column have come, of the views that you own or may read';
COMMENT ON COLUMN tidemark.watermarks.watermark IS
    'the greatest value minus the lateness; a column without time zone counts as UTC';
GRANT SELECT ON tidemark.late_rows, tidemark.watermarks TO PUBLIC;
