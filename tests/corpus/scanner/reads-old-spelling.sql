SELECT count(*) FROM ship AS s WHERE {{
  LLMMap(
    'Was it lost at sea?'
    's::name'
  )
}} = TRUE
