SELECT * FROM ship s LEFT JOIN port p ON {{LLMJoin(s."home port", p.city, join_criteria='the same place')}} AND p.depth > 5
