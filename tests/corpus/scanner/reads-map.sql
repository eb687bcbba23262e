SELECT s.name FROM ship AS s WHERE {{LLMMap('Is this a sailing ship?', s.name)}} = TRUE
