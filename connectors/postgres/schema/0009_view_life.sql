-- Requested changes of a view, their progress, and their procedures.

ALTER TABLE tidemark.views
    ADD COLUMN version integer NOT NULL DEFAULT 0,
    ADD COLUMN change jsonb,
    ADD COLUMN replacing jsonb;
COMMENT ON COLUMN tidemark.views.version IS 'counts its queries and rebuilds';
COMMENT ON COLUMN tidemark.views.change IS
    'the requested change: another version of the query, or another name';
COMMENT ON COLUMN tidemark.views.replacing IS
    'progress of the newest change, or why it was cancelled; NULL if there is none';
COMMENT ON COLUMN tidemark.views.positions IS 'positions of a paused view, by source';

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
COMMENT ON PROCEDURE tidemark.rebuild_view(text, jsonb) IS 'Computes a view again; resolves the status failed';
REVOKE EXECUTE ON PROCEDURE tidemark.rebuild_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.pause_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', pause_view.name);
BEGIN
    CALL tidemark.request('pause_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.pause_view(text, jsonb) IS 'Stops maintaining a view; its rows stay';
REVOKE EXECUTE ON PROCEDURE tidemark.pause_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.resume_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', resume_view.name);
BEGIN
    CALL tidemark.request('resume_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.resume_view(text, jsonb) IS 'Rebuilds a paused view and maintains it again';
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
COMMENT ON PROCEDURE tidemark.cancel_change(text, jsonb) IS 'Cancels the change of a view in progress';
REVOKE EXECUTE ON PROCEDURE tidemark.cancel_change(text, jsonb) FROM PUBLIC;
