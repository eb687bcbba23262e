SELECT {{LLMMap('q?', c, few_shot_examples=[{'in': 'a]', "out": {'b': (1, 2)}}])}} FROM t
