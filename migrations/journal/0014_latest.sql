-- Finds the latest answers of one model among those of many others.
CREATE INDEX completion_model ON completion(model, id);
