SELECT {{LLMMap('Which flag?', (ship::name), options=(flag::country))}} FROM ship
