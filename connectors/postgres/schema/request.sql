-- Writes a request and waits; a part of several steps, each of which replaces it.

CREATE OR REPLACE PROCEDURE tidemark.request(operation text, arguments jsonb, options jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    waits boolean;
    title text;
    number bigint;
    found record;
    said text;
    reported text := '';
    reported_at timestamptz := '-infinity';
    alone_since timestamptz;
BEGIN
    -- A SET clause would forbid COMMIT: each transaction sets the path again.
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF pg_catalog.current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'CALL tidemark.%() cannot write its request: this session is read-only',
            operation USING ERRCODE = '25006', DETAIL = 'code: sink.read_only; nothing was requested',
            HINT = 'call it on the primary; check default_transaction_read_only';
    END IF;
    waits := coalesce((options ->> 'wait')::boolean, true);
    title := tidemark.service_for(operation, arguments, options);
    IF waits THEN
        -- A transaction block and a function refuse the COMMIT before they check for the
        -- subtransaction of this block; elsewhere the subtransaction is refused.
        BEGIN
            COMMIT;
        EXCEPTION WHEN invalid_transaction_termination THEN
            said := SQLERRM;
        END;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        IF said = tidemark.refused_commit() THEN
            RAISE EXCEPTION 'CALL tidemark.%() cannot wait inside a transaction block',
                operation USING ERRCODE = '25001',
                DETAIL = 'the service sees a request once it is committed',
                HINT = 'CALL it outside of a transaction block (psycopg2: connection.autocommit = '
                    'True), or with options {"wait": false}: then it is done after your COMMIT';
        END IF;
        IF NOT tidemark.was_served(title) THEN
            RAISE EXCEPTION 'no Tidemark service is listening to this database'
                USING ERRCODE = '57P03', DETAIL = 'code: service.absent; nothing was requested',
                HINT = 'tidemark serve --sink with this database, or pass {"wait": false}';
        END IF;
    END IF;
    number := tidemark.ask(operation, coalesce(arguments, '{}')
        || jsonb_build_object('options', coalesce(options, '{}') - 'wait' - 'service'), current_user, title);
    IF NOT waits THEN
        RAISE NOTICE 'request % is written; SELECT * FROM tidemark.my_requests shows its status',
            number;
        -- The caller's transaction continues.
        PERFORM set_config('search_path', path, true);
        RETURN;
    END IF;
    COMMIT;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    LOOP
        SELECT * INTO found FROM tidemark.look(number);
        EXIT WHEN found.status IS NULL OR found.status IN ('done', 'failed');
        IF found.progress <> reported AND (reported_at < clock_timestamp() - interval '1 second'
            OR split_part(found.progress, ',', 1) <> split_part(reported, ',', 1)) THEN
            IF reported = '' THEN
                RAISE NOTICE 'request % is accepted; Ctrl-C ends the waiting, not the work', number;
            END IF;
            RAISE NOTICE '%', found.progress;
            reported := found.progress;
            reported_at := clock_timestamp();
        END IF;
        IF tidemark.is_served(title) THEN
            alone_since := NULL;
        ELSE
            alone_since := coalesce(alone_since, clock_timestamp());
            IF alone_since < clock_timestamp() - interval '30 seconds' THEN
                RAISE EXCEPTION 'the Tidemark service does not answer' USING ERRCODE = '57P03',
                    DETAIL = format('code: service.absent; request %s stays and is done when it '
                        'is back', number),
                    HINT = 'start the service, then see tidemark.my_requests';
            END IF;
        END IF;
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        PERFORM pg_sleep(CASE WHEN reported_at = '-infinity' THEN 0.02 ELSE 0.1 END);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    END LOOP;
    IF found.status = 'failed' THEN
        IF coalesce(found.hint, '') = '' THEN
            RAISE EXCEPTION USING ERRCODE = found.sqlstate, MESSAGE = found.error,
                DETAIL = found.detail;
        END IF;
        RAISE EXCEPTION USING ERRCODE = found.sqlstate, MESSAGE = found.error,
            DETAIL = found.detail, HINT = found.hint;
    END IF;
    IF found.status IS NULL THEN
        RAISE EXCEPTION 'request % is gone', number USING ERRCODE = '55000';
    END IF;
    FOR said IN SELECT jsonb_array_elements_text(coalesce(found.result -> 'warnings', '[]')) LOOP
        RAISE WARNING '%', said;
    END LOOP;
    IF found.result ->> 'said' <> '' THEN
        RAISE NOTICE '%', found.result ->> 'said';
    END IF;
END $$;
