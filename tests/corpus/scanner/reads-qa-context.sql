SELECT * FROM port WHERE city = {{LLMQA('Which of these lies furthest north?', (SELECT city, country FROM port WHERE depth > 12), options=city)}}
