-- The service that writes to the sink, and the fence (connectors/postgres/schema/lease.py).

CREATE TABLE tidemark.owners (
    sink_key text PRIMARY KEY,
    token text NOT NULL,
    place text NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.owners IS
    'The service that writes each key of tidemark.progress; a successor fences the others';

CREATE FUNCTION tidemark.require_owner(writer text, claimed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM tidemark.owners WHERE sink_key = writer AND token = claimed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'taken over by %', coalesce(
            (SELECT place || ', since ' || since FROM tidemark.owners WHERE sink_key = writer),
            'someone who has left') USING ERRCODE = '{{fenced_state}}';
    END IF;
END $$;
COMMENT ON FUNCTION tidemark.require_owner IS 'The fence: refuses everyone but the owner of the key';

CREATE FUNCTION tidemark.advance(writer text, new_epoch bigint, reached jsonb, claimed text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tidemark.require_owner(writer, claimed);
    PERFORM tidemark.advance(writer, new_epoch, reached);
END $$;
COMMENT ON FUNCTION tidemark.advance(text, bigint, jsonb, text) IS
    'The fence: advances only for the owner, and by exactly one epoch';
REVOKE EXECUTE ON FUNCTION tidemark.require_owner, tidemark.advance(text, bigint, jsonb, text)
    FROM PUBLIC;
