SELECT {{LLMMap('Größe von „{}“?', t.größe, 'テーブル::列', options=('groß', '小'))}} FROM t
