-- The progress of a view's change, besides the view's own status.

CREATE OR REPLACE FUNCTION tidemark.look(
    number bigint, OUT status text, OUT progress text, OUT code text, OUT sqlstate text,
    OUT error text, OUT detail text, OUT hint text, OUT result jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status,
        CASE WHEN v.name IS NULL THEN NULL
            WHEN r.operation = 'create_view'
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.status, v.progress)
            WHEN r.operation IN ('replace_view', 'rebuild_view', 'resume_view')
                AND v.change IS NOT NULL
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.replacing ->> 'kind', v.replacing -> 'progress') END,
        r.code, r.sqlstate, r.error, r.detail, r.hint, r.result
    FROM tidemark.requests AS r
    LEFT JOIN tidemark.views AS v ON v.identity = coalesce(r.target, r.identity)
    WHERE r.id = number AND r.login = session_user
$$;
