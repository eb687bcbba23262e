SELECT {{LLMMap('Afloat?', 'ship::name', options='yes;no')}} FROM ship
