-- The latest answers of one model, among many of others.
CREATE INDEX completion_model ON hqdl.completion (model, id);
