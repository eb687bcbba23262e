SELECT {{LLMMap('Which rig?', name, options=(SELECT /* ) */ rig FROM rigging WHERE rig <> '),'))}} FROM ship
