SELECT {{LLMValidate('All of these are ports in Europe', (SELECT city FROM port), context=(VALUES ('Oslo')))}}
