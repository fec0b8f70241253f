-- The producer's side. Objects are created in the schema that the connection's search_path names, and functions
-- keep that path, so that one set of migrations serves any schema name.

-- A UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits. In time order, so that an index on it is
-- written at its right edge.
CREATE FUNCTION uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(
            set_bit(
                overlay(
                    uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6
                ),
                52, 1),
            53, 1),
        'hex')::uuid
$$;

-- The outbox is a log: rows are inserted, read behind a cursor, and removed by age. They are never updated.
--
-- `xid` stands before `id`, and both come from defaults, so that a row's transaction has its id before the
-- sequence is drawn: the relay's bound on ids depends on it. The sequence must not cache (CACHE 1), or ids of one
-- key would not rise in the order of its commits.
CREATE TABLE outbox (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id  uuid        NOT NULL DEFAULT uuid_v7(),
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    subject     text        NOT NULL,
    key         text,
    headers     jsonb       CHECK (jsonb_typeof(headers) = 'object'),
    payload     bytea       NOT NULL
);
-- By transaction, then by id: the relay reads the rows of one late transaction from where it stopped.
CREATE INDEX outbox_xid ON outbox (xid, id);
COMMENT ON TABLE outbox IS 'messages to publish, written in the transaction of the business change; a log that is never updated';

-- One row a relay: how far it has come, and who may move it.
CREATE TABLE relay (
    name            text        PRIMARY KEY,
    -- The cluster in which the transaction ids below mean something (pg_control_system()).
    cluster         text        NOT NULL,
    -- All that this snapshot sees is settled: published and acknowledged, or among the dead letters.
    settled         pg_snapshot NOT NULL DEFAULT '1:1:',
    -- Rows of transactions from the snapshot's xmax on have ids above the floor (src/outbox/cursor.rs says why).
    floor           bigint      NOT NULL DEFAULT 0,
    -- What is being published: all that the target sees and `settled` does not, by id, up to `position` done.
    target          pg_snapshot,
    target_floor    bigint,
    position        bigint      NOT NULL DEFAULT 0,
    -- The relay went back in the log when rows up to this id had been published: where the broker calls one of them a
    -- duplicate, it is looked up, since the broker may have lost it.
    verify_through  bigint      NOT NULL DEFAULT 0,
    -- The lease. Each taking raises the epoch; a write with an older epoch changes nothing.
    holder          text,
    epoch           bigint      NOT NULL DEFAULT 0,
    lease_until     timestamptz NOT NULL DEFAULT '-infinity',
    published       bigint      NOT NULL DEFAULT 0,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CHECK ((target IS NULL) = (target_floor IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE relay IS 'the cursor and lease of each relay';

-- A relay that has been idle for a while stands here and listens; only then does an enqueue notify, since every
-- notifying transaction takes a lock that all of them share.
CREATE TABLE relay_asleep (
    relay text        PRIMARY KEY REFERENCES relay ON DELETE CASCADE,
    since timestamptz NOT NULL DEFAULT now()
);

-- Where the log met the stream: the snapshot that was settled when `sequence` was the stream's last acknowledged
-- message, whose deduplication id was `dedup_id`. If the broker loses what it acknowledged, the relay goes back to
-- the newest checkpoint that still holds.
CREATE TABLE checkpoint (
    id             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay          text        NOT NULL REFERENCES relay ON DELETE CASCADE,
    stream         text        NOT NULL,
    stream_created timestamptz NOT NULL,
    sequence       bigint      NOT NULL,
    dedup_id       text        NOT NULL,
    settled        pg_snapshot NOT NULL,
    floor          bigint      NOT NULL,
    taken_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX checkpoint_newest ON checkpoint (relay, stream, id DESC);

-- The last message that a relay knows to be acknowledged in a stream, saved with every move of its cursor: what the
-- stream has to have, whoever holds the lease next. `stream_created` is unknown until it was asked for.
CREATE TABLE relay_mark (
    relay          text        NOT NULL REFERENCES relay ON DELETE CASCADE,
    stream         text        NOT NULL,
    sequence       bigint      NOT NULL,
    dedup_id       text        NOT NULL,
    stream_created timestamptz,
    PRIMARY KEY (relay, stream)
);

-- The rules of src/message/rules.rs, for callers of any language.
CREATE FUNCTION check_message(subject text, key text, headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- Unicode's, written out: [[:space:]] and [[:cntrl:]] mean something else in each locale.
    space constant text := '[\u0009-\u000d\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]';
    control constant text := '[\u0001-\u001f\u007f-\u009f]';
    header record;
    bytes bigint := 0;
BEGIN
    IF subject IS NULL OR subject = '' THEN
        RAISE EXCEPTION 'twinbox: subject is empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(subject) > 1024 THEN
        RAISE EXCEPTION 'twinbox: subject is longer than 1024 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF subject LIKE '$%' THEN
        RAISE EXCEPTION 'twinbox: subject "%" begins with $, which is the server''s own', subject
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF subject ~ (space || '|' || control) THEN
        RAISE EXCEPTION 'twinbox: subject "%" has white space or control characters', subject
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF subject ~ '[*>]' THEN
        RAISE EXCEPTION 'twinbox: subject "%" has a wildcard: a message is published to one subject', subject
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF subject ~ '(^|\.)(\.|$)' THEN
        RAISE EXCEPTION 'twinbox: subject "%" has an empty token: write a.b, with no dot at either end', subject
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF key IS NOT NULL THEN
        IF key = '' THEN
            RAISE EXCEPTION 'twinbox: key is empty: pass NULL for a message without order'
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF octet_length(key) > 1024 THEN
            RAISE EXCEPTION 'twinbox: key is longer than 1024 bytes' USING ERRCODE = 'invalid_parameter_value';
        ELSIF key ~ control OR key ~ ('^' || space || '|' || space || '$') THEN
            RAISE EXCEPTION 'twinbox: key "%" has control characters, or white space at an end', key
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF headers IS NULL THEN
        RETURN;
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'twinbox: headers must be a JSON object of strings' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR header IN
        SELECT h.key AS name, v.value
        FROM jsonb_each(headers) AS h,
             LATERAL jsonb_array_elements(
                CASE jsonb_typeof(h.value) WHEN 'array' THEN h.value ELSE jsonb_build_array(h.value) END) AS v
    LOOP
        bytes := bytes + octet_length(header.name) + octet_length(header.value #>> '{}') + 3;
        IF jsonb_typeof(header.value) <> 'string' THEN
            RAISE EXCEPTION 'twinbox: header "%" must be a string or an array of strings', header.name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF header.name !~ '^[!-9;-~]+$' THEN
            RAISE EXCEPTION 'twinbox: header "%" is no header name: use printable ASCII without a colon', header.name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF lower(header.name COLLATE "C") LIKE ANY (ARRAY['nats-%', 'twinbox-%']) THEN
            RAISE EXCEPTION 'twinbox: header "%" is reserved: names may not begin with Nats- or Twinbox-', header.name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF replace(header.value #>> '{}', E'\t', '') ~ control THEN
            RAISE EXCEPTION 'twinbox: header "%" has a value with control characters', header.name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF bytes > 60 * 1024 THEN
            RAISE EXCEPTION 'twinbox: headers have more than 60 KiB together' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
END
$$;

-- Enqueues a message in the caller's transaction and returns its id. Payloads: bytea as it is, text as its UTF-8
-- bytes, jsonb as its text with the Content-Type of JSON.
CREATE FUNCTION enqueue(subject text, payload bytea, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                        message_id uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    id_made uuid := coalesce(enqueue.message_id, uuid_v7());
BEGIN
    IF enqueue.payload IS NULL THEN
        RAISE EXCEPTION 'twinbox: payload is NULL: pass an empty one' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM check_message(enqueue.subject, enqueue.key, enqueue.headers);
    INSERT INTO outbox (message_id, subject, key, headers, payload)
    VALUES (id_made, enqueue.subject, enqueue.key, enqueue.headers, enqueue.payload);
    PERFORM pg_notify(current_schema() || '_outbox', '') FROM relay_asleep LIMIT 1;
    RETURN id_made;
END
$$;

CREATE FUNCTION enqueue(subject text, payload text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                        message_id uuid DEFAULT NULL) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT enqueue(subject, convert_to(payload, 'UTF8'), key, headers, message_id)
$$;

CREATE FUNCTION enqueue(subject text, payload jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                        message_id uuid DEFAULT NULL) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT enqueue(subject, convert_to(payload::text, 'UTF8'), key,
                   jsonb_build_object('Content-Type', 'application/json') || coalesce(headers, '{}'), message_id)
$$;
