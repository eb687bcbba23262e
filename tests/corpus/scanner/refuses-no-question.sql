SELECT {{LLMMap(options=('a'))}} FROM t
