-- CALL tidemark.verify_view.

CREATE PROCEDURE tidemark.verify_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', verify_view.name);
BEGIN
    CALL tidemark.request('verify_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.verify_view(text, jsonb) IS 'Compares a view with PostgreSQL''s answer of its query';
REVOKE EXECUTE ON PROCEDURE tidemark.verify_view(text, jsonb) FROM PUBLIC;
