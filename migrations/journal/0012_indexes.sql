-- Indexes for lookups of each run, so that they do not become slower with the number of runs.
CREATE INDEX run_spec ON run(spec);
CREATE INDEX completion_run ON completion(run);
CREATE INDEX meaning_name ON meaning(name);
