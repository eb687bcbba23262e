-- What requests to an endpoint hold, where it has refused some of what they held:
-- by a hash of the endpoint, the model and its settings. Forgotten after a day, and
-- when it no longer serves.
CREATE TABLE hqdl.request_form (
  endpoint text PRIMARY KEY,
  form     text NOT NULL,      -- JSON
  heard_at timestamptz NOT NULL DEFAULT now()
);
