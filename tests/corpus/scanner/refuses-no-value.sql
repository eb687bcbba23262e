SELECT {{LLMMap('q?')}} FROM t
