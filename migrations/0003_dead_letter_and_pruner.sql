-- Messages that could not be published (box 'outbox', owner the relay) or handled (box 'inbox', owner the consumer).
CREATE TABLE dead_letter (
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    box         text        NOT NULL CHECK (box IN ('outbox', 'inbox')),
    owner       text        NOT NULL,
    state       text        NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'requeued')),
    message_id  uuid        NOT NULL,
    -- The outbox row, or 0: an application may enqueue one id more than once.
    outbox_id   bigint      NOT NULL DEFAULT 0,
    -- Where the stream had it: NULL for the outbox's.
    stream      text,
    sequence    bigint,
    subject     text        NOT NULL,
    key         text,
    -- json, not jsonb: what came in is kept as it came.
    headers     json,
    payload     bytea       NOT NULL,
    -- When it was enqueued, where known.
    enqueued_at timestamptz,
    reason      text        NOT NULL,
    error       text        NOT NULL,
    runs        integer     NOT NULL DEFAULT 0,
    dead_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (box, owner, message_id, outbox_id)
);
CREATE INDEX dead_letter_key ON dead_letter (box, owner, key, id) WHERE key IS NOT NULL;
CREATE INDEX dead_letter_requeued ON dead_letter (box, owner, id) WHERE state = 'requeued';
COMMENT ON TABLE dead_letter IS 'messages that could not be published or handled, with the reason';

-- What each pruner last did and why it may.
CREATE TABLE pruner (
    name          text        PRIMARY KEY,
    keep_s        bigint      NOT NULL,
    proof         text        NOT NULL,
    last_deleted  bigint      NOT NULL DEFAULT 0,
    deleted       bigint      NOT NULL DEFAULT 0,
    last_run_at   timestamptz NOT NULL DEFAULT now()
);
