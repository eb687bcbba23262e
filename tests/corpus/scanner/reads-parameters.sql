SELECT {{LLMMap('q?', ?, ?2, :name, @at, $dollar)}} FROM t WHERE a > ?
