SELECT {{LLMMap("Which flag?", "ship::Name at launch", options='flag::country')}} FROM ship
