-- What is looked up once a run must not take longer the more runs there were.
CREATE INDEX run_spec ON run(spec);
CREATE INDEX completion_run ON completion(run);
CREATE INDEX meaning_name ON meaning(name);
