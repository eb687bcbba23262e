SELECT * FROM (VALUES {{LLMQA('Name three seas', return_type='List[str]', quantifier='{3}')}}, (1, 2, 3)) AS sea(a, b, c)
