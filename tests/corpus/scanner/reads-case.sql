select case when {{llmmap('q?', t.a)}} then 1 when not {{LLMMAP('r?', t.b)}} in (1, 2) then 2 end from t
