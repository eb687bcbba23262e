SELECT {{LLMMap('q?', c, option=('a', 'b'))}} FROM t
