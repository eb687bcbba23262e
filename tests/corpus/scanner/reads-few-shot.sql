SELECT {{LLMMap('q?', c, searcher=[{'in': 'a]', "out": {'b': (1, 2)}}], few_shot=0, batch_size=5, model='m')}} FROM t
