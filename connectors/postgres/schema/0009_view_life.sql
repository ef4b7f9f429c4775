-- Changes of a view that are asked for, how they go, and their procedures.

ALTER TABLE tidemark.views
    ADD COLUMN version integer NOT NULL DEFAULT 0,
    ADD COLUMN change jsonb,
    ADD COLUMN replacing jsonb;
COMMENT ON COLUMN tidemark.views.version IS 'counts the queries and rebuilds that it has had';
COMMENT ON COLUMN tidemark.views.change IS
    'what the user wants changed: another version of the query, or another name';
COMMENT ON COLUMN tidemark.views.replacing IS
    'how far the newest change is, or why it was given up; NULL when there is nothing to tell';
COMMENT ON COLUMN tidemark.views.positions IS 'where a paused view stands, by source';

DROP TRIGGER announce ON tidemark.views;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired, change
    ON tidemark.views FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();

CREATE PROCEDURE tidemark.replace_view(name text, query text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', replace_view.name, 'query', replace_view.query);
BEGIN
    CALL tidemark.request('replace_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.replace_view(text, text, jsonb) IS 'Gives a view another query; its rows stay readable';
REVOKE EXECUTE ON PROCEDURE tidemark.replace_view(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.rebuild_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', rebuild_view.name);
BEGIN
    CALL tidemark.request('rebuild_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.rebuild_view(text, jsonb) IS 'Computes a view anew; the way out of failed';
REVOKE EXECUTE ON PROCEDURE tidemark.rebuild_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.pause_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', pause_view.name);
BEGIN
    CALL tidemark.request('pause_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.pause_view(text, jsonb) IS 'Leaves a view''s rows as they are';
REVOKE EXECUTE ON PROCEDURE tidemark.pause_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.resume_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', resume_view.name);
BEGIN
    CALL tidemark.request('resume_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.resume_view(text, jsonb) IS 'Keeps a paused view up to date again';
REVOKE EXECUTE ON PROCEDURE tidemark.resume_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.rename_view(name text, new_name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', rename_view.name, 'new_name', rename_view.new_name);
BEGIN
    CALL tidemark.request('rename_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.rename_view(text, text, jsonb) IS 'Gives a view another name in its schema';
REVOKE EXECUTE ON PROCEDURE tidemark.rename_view(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.move_view(name text, new_schema text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', move_view.name, 'new_schema', move_view.new_schema);
BEGIN
    CALL tidemark.request('move_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.move_view(text, text, jsonb) IS 'Moves a view to another schema';
REVOKE EXECUTE ON PROCEDURE tidemark.move_view(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.cancel_change(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', cancel_change.name);
BEGIN
    CALL tidemark.request('cancel_change', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.cancel_change(text, jsonb) IS 'Gives up what is under way for a view';
REVOKE EXECUTE ON PROCEDURE tidemark.cancel_change(text, jsonb) FROM PUBLIC;
