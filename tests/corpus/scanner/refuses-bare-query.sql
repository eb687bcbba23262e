SELECT {{LLMQA('q?', SELECT a, b FROM t)}}
