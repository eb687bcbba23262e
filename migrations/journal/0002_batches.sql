-- Requests that are sent through an endpoint's Batch API, or as files by the user. Such a batch is
-- a *parcel* here.

-- Request templates, as JSON: everything that prompts and answers depend on, so that an answer can
-- be parsed even if the spec has changed since.
CREATE TABLE form (
  id   INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  form TEXT NOT NULL
);

-- One row per batch job: written -> uploaded -> creating -> open -> closed, or exported for a file
-- that the user sends. `token` is part of the file's name and of the batch's metadata. It
-- identifies a batch that was created just before its process was killed.
CREATE TABLE parcel (
  id         INTEGER PRIMARY KEY,
  token      TEXT NOT NULL,
  run        INTEGER NOT NULL REFERENCES run(id),
  spec       TEXT NOT NULL,
  endpoint   TEXT NOT NULL,
  state      TEXT NOT NULL,
  requests   INTEGER NOT NULL,
  input_file TEXT,
  batch      TEXT,
  written_at TEXT NOT NULL,
  sent_at    TEXT,
  closed_at  TEXT,
  outcome    TEXT
);

-- One row per request: waiting (in no parcel yet), packed, answered, or dropped. `columns` and
-- `whole` are column positions in the template, `meanings` the ids of the requested columns, and
-- `worst_*` the worst-case cost.
CREATE TABLE request (
  id           INTEGER PRIMARY KEY,
  parcel       INTEGER REFERENCES parcel(id),
  custom_id    TEXT,
  state        TEXT NOT NULL,
  form         INTEGER NOT NULL REFERENCES form(id),
  model        INTEGER NOT NULL REFERENCES model(id),
  columns      TEXT NOT NULL,
  whole        TEXT NOT NULL,
  meanings     TEXT NOT NULL,
  attempt      INTEGER NOT NULL,
  sent         INTEGER NOT NULL,
  worst_usd    REAL NOT NULL DEFAULT 0,
  worst_tokens INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX request_custom_id ON request(custom_id);
CREATE INDEX request_parcel ON request(parcel, state);
CREATE INDEX request_waiting ON request(id) WHERE state = 'waiting';

-- The rows of a request, until it is answered.
CREATE TABLE request_row (
  request INTEGER NOT NULL REFERENCES request(id),
  number  INTEGER NOT NULL,
  entity  TEXT NOT NULL,
  row     TEXT NOT NULL,
  PRIMARY KEY (request, number)
) WITHOUT ROWID;
CREATE INDEX request_row_entity ON request_row(entity);
