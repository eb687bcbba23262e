SELECT * FROM ship JOIN port ON {{LLMJoin(left_on='ship::home port', right_on='port::city')}}
