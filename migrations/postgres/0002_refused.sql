-- Features of requests to endpoints that have rejected some: by a hash of the endpoint, the model
-- and its settings. They are deleted after a day, or when they no longer work.
CREATE TABLE hqdl.request_form (
  endpoint text PRIMARY KEY,
  form     text NOT NULL,      -- JSON
  heard_at timestamptz NOT NULL DEFAULT now()
);
