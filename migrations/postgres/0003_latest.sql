-- Finds the latest answers of one model among those of many others.
CREATE INDEX completion_model ON hqdl.completion (model, id);
