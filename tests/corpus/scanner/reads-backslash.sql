SELECT {{LLMQA('a\', regex='\d+\')}}
