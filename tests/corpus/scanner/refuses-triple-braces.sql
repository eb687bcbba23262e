SELECT {{{LLMQA('q?')}}}
