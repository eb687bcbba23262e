SELECT {{LLMMap('Which rig?', s.name, options=['sloop', "brig", 'ship]', 3, -1.5e2, True, None,])}} FROM ship s
