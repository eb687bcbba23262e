SELECT {{LLMMap('q?', c, few_shot_examples=[{'in': 'a]', "out": {'b': (1, 2)}}], batch_size=5, model='m')}} FROM t
