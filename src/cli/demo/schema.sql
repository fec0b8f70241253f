-- The demo's own tables. No unique constraint on what took effect, so that a second effect would show.
CREATE SCHEMA demo;
CREATE TABLE demo.customer (id int PRIMARY KEY, orders int NOT NULL DEFAULT 0);
CREATE TABLE demo.placed_order (
    id           uuid        PRIMARY KEY,
    customer     int         NOT NULL,
    number       int         NOT NULL,
    amount_cents bigint      NOT NULL,
    placed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE demo.account (customer int PRIMARY KEY, balance_cents bigint NOT NULL);
CREATE TABLE demo.charge (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id     uuid        NOT NULL,
    customer     int         NOT NULL,
    number       int         NOT NULL,
    amount_cents bigint      NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE demo.ledger_entry (LIKE demo.charge INCLUDING ALL);
INSERT INTO demo.customer SELECT generate_series(1, 100);
INSERT INTO demo.account SELECT generate_series(1, 100), 100000000;
