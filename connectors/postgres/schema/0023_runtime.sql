-- Views change their runtime.

CREATE PROCEDURE tidemark.change_runtime(name text, runtime text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', change_runtime.name, 'runtime', change_runtime.runtime);
BEGIN
    CALL tidemark.request('change_runtime', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.change_runtime(text, text, jsonb) IS 'Maintains a view by Spark, or locally, from now on';
REVOKE EXECUTE ON PROCEDURE tidemark.change_runtime(text, text, jsonb) FROM PUBLIC;
COMMENT ON COLUMN tidemark.views.change IS
    'the requested change: another version of the query, another name, or another runtime';
