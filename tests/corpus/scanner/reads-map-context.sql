SELECT {{LLMMap('Who built {} at {}?', s.name, s.yard, return_type='str')}} AS builder FROM ship s LIMIT 3
