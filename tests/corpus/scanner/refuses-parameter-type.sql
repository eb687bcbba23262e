SELECT {{LLMMap('q?', c, return_type=?)}} FROM t
