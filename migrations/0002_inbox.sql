-- The consumer's side.

-- A stream in one incarnation: deleted and created again, it counts from one, and its sequences mean other messages.
CREATE TABLE stream (
    id         integer     NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL,
    created_at timestamptz NOT NULL,
    UNIQUE (name, created_at)
);

CREATE TABLE consumer (
    id               integer     NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             text        NOT NULL UNIQUE,
    stream           text        NOT NULL,
    -- The staleness fence: ids claimed before this time may have been forgotten, so a message that is older is
    -- never run.
    forgotten_before timestamptz NOT NULL DEFAULT 'epoch',
    created_at       timestamptz NOT NULL DEFAULT now()
);

-- The claims. The primary key decides every race. `stream` and `sequence` are the last place where the message was
-- seen: they prove when it can't come again.
CREATE TABLE inbox (
    message_id uuid        NOT NULL,
    sequence   bigint      NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    consumer   integer     NOT NULL,
    stream     integer     NOT NULL,
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX inbox_claimed_at ON inbox (claimed_at);
COMMENT ON TABLE inbox IS 'ids of the messages whose effect is committed, by consumer';

-- Handler runs of messages that did not succeed at once. Deliveries are not counted, runs are.
CREATE TABLE attempt (
    message_id  uuid        NOT NULL,
    consumer    integer     NOT NULL,
    runs        integer     NOT NULL,
    last_error  text,
    last_run_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message_id)
);

-- Counted in the transactions they count, one row a lane of a process, so that lanes never wait for each other.
CREATE TABLE consumer_counter (
    consumer   integer     NOT NULL REFERENCES consumer ON DELETE CASCADE,
    instance   uuid        NOT NULL,
    lane       integer     NOT NULL,
    claimed    bigint      NOT NULL DEFAULT 0,
    duplicates bigint      NOT NULL DEFAULT 0,
    retries    bigint      NOT NULL DEFAULT 0,
    dead       bigint      NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, instance, lane)
) WITH (fillfactor = 50);
