SELECT {{LLMapp('q?', c)}} FROM t
