SELECT {{LLMQA('Sum up', context=(SELECT {{LLMMap('Kind of {}?', upper({{LLMMap('Name?', t.c || '}}')}}))}} FROM t), options=(SELECT * FROM (VALUES {{LLMQA('Kinds?')}})))}}
