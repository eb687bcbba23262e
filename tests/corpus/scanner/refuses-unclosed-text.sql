SELECT {{LLMMap('q?, c)}} FROM t
