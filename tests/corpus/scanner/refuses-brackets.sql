SELECT {{LLMQA('q?', options=['a', ('b'])}}
