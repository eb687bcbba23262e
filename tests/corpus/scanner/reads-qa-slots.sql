SELECT {{LLMQA('What do {} and {} share?', 'Bergen', (SELECT 'Genoa'), 7)}}
