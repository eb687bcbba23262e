-- Forms in which BlendSQL's documentation, examples and prompts call its ingredients, put in
-- words of our own over tables of our own. A query ends with `;` at a line's end. A comment
-- `-- refused: WORDS` before one says that it is, and with which words.

SELECT title FROM movies WHERE {{LLMMap('Is it a comedy?', 'movies::plot')}} = TRUE;
SELECT title FROM movies WHERE {{LLMMap('Is it a comedy?', 'movies::plot')}} = 1;
SELECT title FROM movies WHERE {{LLMMap('Is it a comedy?', 'movies::plot')}};
SELECT title FROM movies WHERE NOT {{LLMMap('Is it a comedy?', movies.plot)}};
SELECT title FROM movies WHERE {{LLMMap('Is it a comedy?', plot)}} IS TRUE;
SELECT title, {{LLMMap('What is its genre?', movies.plot)}} AS genre FROM movies;
SELECT {{ImageCaption(plot)}} FROM movies;
SELECT title FROM movies WHERE {{VQA('Is it raining?', 'movies::plot')}} = TRUE;
SELECT {{LLMMap('What is its genre?', m.plot)}} AS genre, COUNT(*) FROM movies m GROUP BY genre ORDER BY 2 DESC;
SELECT {{LLMMap('What is its genre?', 'm::plot')}} AS genre FROM movies AS m;
SELECT {{LLMMap('What is its genre?', 'movies::plot')}} AS genre FROM movies AS m;
SELECT title FROM movies WHERE {{LLMMap('What is its genre?', plot, options=('drama', 'comedy'))}} = 'drama';
SELECT title FROM movies WHERE {{LLMMap('What is its genre?', plot, options=['drama', 'comedy'])}} = 'drama';
SELECT title FROM movies WHERE {{LLMMap('What is its genre?', plot, options='drama;comedy')}} = 'drama';
SELECT title FROM movies WHERE {{LLMMap('Where does it play?', plot, options='people::country')}} = 'France';
SELECT title FROM movies WHERE {{LLMMap('Where does it play?', plot, options=people.country)}} = 'France';
SELECT title FROM movies WHERE {{LLMMap('Where does it play?', plot, options=(SELECT DISTINCT country FROM people))}} IN ('France', 'Italy');
SELECT title FROM movies WHERE {{LLMMap('How long is it?', plot, return_type='int')}} > 90;
SELECT title FROM movies WHERE {{LLMMap('How long is it?', plot, output_type='integer')}} BETWEEN 60 AND 120;
SELECT title FROM movies WHERE {{LLMMap('How long is it?', plot)}} > 90 ORDER BY title LIMIT 2;
SELECT title, {{LLMMap('Who is in it?', plot, return_type='List[str]')}} FROM movies;
SELECT title, {{LLMMap('Who is in it?', plot, return_type='list', quantifier='{2}')}} FROM movies;
SELECT title, {{LLMMap('Who is in it?', plot, modifier='*')}} FROM movies;
SELECT title, {{LLMMap('When was the premiere?', plot, return_type='date')}} AS d FROM movies WHERE year > 1990;
SELECT title, {{LLMMap('Its code?', plot, regex='[A-Z]{3}')}} FROM movies;
SELECT title, {{LLMMap('Its code?', plot, pattern='\d+')}} FROM movies;
SELECT {{LLMMap('What is its genre?', plot, example_outputs=('drama', 'western'))}} FROM movies;
SELECT {{LLMMap('What did {} direct?', people.name)}} FROM people;
SELECT {{LLMMap('Did {} direct {}?', m.director, m.title)}} FROM movies m;
SELECT {{LLMMap('Is it good?', plot, batch_size=5)}} FROM movies;
SELECT {{LLMMap('Is it good?', values=movies.plot)}} FROM movies;
SELECT {{LLMMap(question='Is it good?', value=movies.plot)}} FROM movies;
SELECT {{LLMMap("Is it good?", plot)}} FROM movies;
SELECT {{LLMMap('What does ''The Kid'' say?', plot)}} FROM movies;
SELECT {{LLMMap('Isn\'t it good?', plot)}} FROM movies;
SELECT {{LLMMap('Is it good?', plot return_type='bool')}} FROM movies;
SELECT {{LLMMap('Is it good?', plot,)}} FROM movies;
SELECT {{LLMMap('Year?', plot)}}::INT FROM movies;
SELECT title FROM movies WHERE LENGTH({{LLMMap('Its motto?', plot)}}) > 3;
SELECT title FROM movies WHERE {{LLMMap('Its motto?', plot)}} LIKE '%love%';
SELECT title FROM movies WHERE {{LLMMap('Is it sad?', plot)}} AND {{LLMMap('Is it long?', plot)}} OR year < 1950;
SELECT CASE WHEN {{LLMMap('Is it sad?', plot)}} THEN 'sad' ELSE 'glad' END AS mood, COUNT(*) FROM movies GROUP BY mood;
SELECT country, SUM({{LLMMap('How many prizes?', name, return_type='int')}}) FROM people GROUP BY country HAVING COUNT(*) > 0;
SELECT name FROM people ORDER BY {{LLMMap('How famous, from 1 to 10?', name, return_type='int')}} DESC LIMIT 1;
SELECT DISTINCT {{LLMMap('Continent?', country)}} FROM people;
WITH old AS (SELECT * FROM movies WHERE year < 1990) SELECT title FROM old WHERE {{LLMMap('Is it sad?', old.plot)}};
WITH old AS (SELECT * FROM movies WHERE year < 1990) SELECT title FROM old WHERE {{LLMMap('Is it sad?', 'old::plot')}} = TRUE;
SELECT title FROM (SELECT title, plot FROM movies WHERE year > 1950) AS w WHERE {{LLMMap('Is it sad?', w.plot)}};
SELECT name FROM people p WHERE EXISTS (SELECT 1 FROM movies m WHERE m.director = p.name AND {{LLMMap('Is it sad?', m.plot)}});
SELECT title FROM movies WHERE director IN (SELECT name FROM people WHERE {{LLMMap('Is it a man?', people.name)}});
SELECT m.title FROM movies m JOIN people p ON m.director = p.name WHERE {{LLMMap('Is it sad?', m.plot)}} AND p.born > 1900;
SELECT title FROM movies UNION SELECT name FROM people WHERE {{LLMMap('Is it a man?', name)}};
SELECT {{LLMQA('Who directed most?', (SELECT director, title FROM movies))}};
SELECT {{LLMQA('Who directed most?', (SELECT director, title FROM movies))}} AS answer;
{{LLMQA('Who directed most?', (SELECT director, title FROM movies))}};
{{LLMQA('Who directed most?')}};
SELECT * FROM movies WHERE director = {{LLMQA('Who directed most?', (SELECT director FROM movies))}};
SELECT * FROM movies WHERE director = {{LLMQA('Who directed most?', options=movies.director)}};
SELECT * FROM movies WHERE director IN {{LLMQA('Which are French?', quantifier='+')}};
SELECT * FROM movies WHERE director IN {{LLMQA('Which are French?', options=(SELECT director FROM movies), quantifier='{1,3}')}};
SELECT * FROM VALUES {{LLMQA('Which three?', (SELECT title FROM movies), return_type='list[str]', quantifier='{3}')}};
SELECT * FROM (VALUES {{LLMQA('Which three?', (SELECT title FROM movies), quantifier='{3}')}});
SELECT {{LLMQA('Which?', (SELECT * FROM VALUES {{LLMQA('Which three?', (SELECT title FROM movies), quantifier='{3}')}}))}};
SELECT {{LLMQA('Which?', (WITH t AS (VALUES {{LLMQA('Which three?', (SELECT title FROM movies), quantifier='{3}')}}) SELECT column2, column3 FROM t))}};
SELECT {{LLMQA('Which?', (SELECT * FROM {{LLMQA('Which three?', (SELECT title FROM movies), return_type='list[str]')}}))}};
SELECT title FROM movies WHERE {{LLMMap('Is it sad?', plot, options=(SELECT value FROM {{LLMQA('Which three?', (SELECT title FROM movies))}}))}} = 'a';
SELECT * FROM {{LLMQA('Which three?', (SELECT title FROM movies), return_type='list[str]')}} AS t WHERE t.value LIKE 'A%';
SELECT m.title, t.value FROM movies m JOIN {{LLMQA('Which three?', (SELECT title FROM movies), quantifier='+')}} t ON t.value = m.title;
SELECT * FROM movies, {{LLMQA('Which is best?', (SELECT title FROM movies))}} best WHERE best.value = title ORDER BY 1;
-- refused: a call is not allowed here
SELECT * FROM {{LLMMap('Is it sad?', movies.plot)}};
SELECT {{LLMQA('Compare them', (SELECT title FROM movies), (SELECT name FROM people))}};
SELECT {{LLMQA('Compare them', context=(SELECT title FROM movies))}};
SELECT {{LLMQA('What is said of {}?', (SELECT name FROM people LIMIT 1), context=(SELECT title FROM movies))}};
SELECT {{LLMQA('Is it so?', (SELECT title FROM movies), options='t;f')}};
SELECT {{LLMQA('Which is oldest?', 'docs::content', options='t;f')}} FROM movies LIMIT 1;
SELECT {{LLMQA('Which part says it?', (SELECT content FROM docs), return_type='substring')}};
SELECT {{LLMQA('Tell all', (SELECT content FROM docs), long_answer=True)}};
SELECT {{LLMQA('Which is oldest?', (SELECT title FROM movies WHERE {{LLMMap('Is it sad?', plot)}}))}};
SELECT {{LLMQA('Who?', (SELECT d.content FROM docs d JOIN {{LLMJoin(left_on='docs::title', right_on='movies::title')}}))}};
SELECT {{LLMQA('Who?', (SELECT movies.title FROM people JOIN {{LLMJoin(left_on='people::name', right_on='movies::director')}} JOIN {{LLMJoin('movies::title', 'docs::title')}}), model='gpt-4o-mini')}};
SELECT * FROM people JOIN {{LLMJoin('people::name', 'movies::director')}};
SELECT * FROM people JOIN movies ON {{LLMJoin(people.name, movies.director)}};
SELECT p.name, m.title FROM people p JOIN movies m ON {{LLMJoin(p.name, m.director, join_criteria='the same person')}} WHERE m.year > 1950;
SELECT * FROM people LEFT JOIN movies ON {{LLMJoin(people.name, movies.director)}};
SELECT name FROM people WHERE {{LLMValidate('Is anybody here French?', (SELECT * FROM people))}};
SELECT {{LLMValidate('Is this so?', (SELECT title FROM movies))}};
SELECT {{LLM('Name a prime')}};
SELECT {{LLMQAList('Which are sad?', (SELECT title FROM movies))}};
SELECT {{LLMQAStr('Which is sad?', (SELECT title FROM movies))}};
SELECT title, {{MultiLabelMap('Which moods?', plot, options=('sad', 'glad', 'dark'))}} FROM movies;
SELECT {{TableSummary('movies')}};
SELECT {{RAGQA('Who won?', docs.content)}};
SELECT {{DocumentSearch('Who won?', 'docs::content')}};
SELECT title FROM movies WHERE {{DT(premiere, start='1960-01-01', end='1999-12-31')}};
SELECT {{LLMMap('Is it sad?', plot, options=('yes', 'no'), return_type='str')}} = 'yes' FROM movies;
SELECT t.title FROM (SELECT *, {{LLMMap('Mood?', plot)}} AS mood FROM movies) t WHERE t.mood = 'sad';
SELECT title FROM movies WHERE year = (SELECT MAX(year) FROM movies WHERE {{LLMMap('Is it sad?', plot)}});
SELECT title, ROW_NUMBER() OVER (PARTITION BY {{LLMMap('Mood?', plot)}} ORDER BY year) FROM movies;
SELECT json_group_array(title) FROM movies WHERE {{LLMMap('Is it sad?', plot)}};
-- refused: there is no ingredient
SELECT {{LLMMapp('Is it sad?', plot)}} FROM movies;
-- refused: has no value to ask about
SELECT {{LLMMap('Is it sad?')}} FROM movies;
-- refused: no such column
SELECT {{LLMMap('Is it sad?', movies.story)}} FROM movies;
-- refused: a query cannot contain examples
SELECT {{LLMMap('Is it sad?', plot, few_shot_examples=[{'a': 1}])}} FROM movies;
-- refused: hqdl does not search the web
SELECT {{BingWebSearch('Who won?')}};
-- refused: is not a model of this query
SELECT {{LLMMap('Is it sad?', plot, model='huge')}} FROM movies;
-- refused: does not end
SELECT {{LLMMap('Is it sad?', plot) FROM movies;
