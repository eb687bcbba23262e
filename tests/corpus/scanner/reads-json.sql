SELECT {{LLMMap('Answer as {"age": int, "tags": [str}', j -> '$.a' ->> 'b')}} FROM t
