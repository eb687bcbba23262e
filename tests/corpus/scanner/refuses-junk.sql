SELECT {{LLMQA('q?') AS x}}
