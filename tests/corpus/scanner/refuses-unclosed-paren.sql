SELECT {{LLMMap('q?', f(c)}} FROM t
