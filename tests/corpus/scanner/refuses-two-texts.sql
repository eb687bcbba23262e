SELECT {{LLMMap('one ' 'two', c)}} FROM t
