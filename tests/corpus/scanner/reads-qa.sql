{{LLMQA('Which ocean is the deepest?')}}
