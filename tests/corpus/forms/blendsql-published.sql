-- More of these, over tables of the shapes that BlendSQL's README, prompts, tests and benchmark
-- programs ask about: names with blanks, full-text search, tables beside the FROM, comments.
-- As `blendsql.sql` is written.

SELECT * FROM w WHERE city = {{LLMQA('Which town is west of here?', (SELECT * FROM documents WHERE documents MATCH 'sydney OR 120'), options='w::city')}};
SELECT "common name" AS 'State Flower' FROM w WHERE state = {{LLMQA('Which is smallest?', (SELECT title, content FROM documents), options='w::state')}};
{{LLMQA('Who built it?', (SELECT title AS 'Building', content FROM documents WHERE title = {{LLMQA('Which title is it?', (SELECT name FROM w WHERE city = 'sydney' AND remarks LIKE '%fire temple%'), options='documents::title')}}))}};
SELECT capacity FROM w WHERE venue = {{LLMQA('Which is named after her?', (SELECT title AS 'Venue', content FROM documents), options='w::venue')}};
{{LLMQA('When was she born?' (WITH t AS (SELECT director FROM (SELECT * FROM "./List of African films (4)" UNION ALL SELECT * FROM "./List of African films (5)") ORDER BY trim(fee, '£') DESC LIMIT 1 OFFSET 2), d AS (SELECT * FROM documents JOIN t WHERE documents MATCH t.director || ' OR sydney OR fc' ORDER BY rank LIMIT 5) SELECT d.content, t.director AS 'The Director' FROM d JOIN t))}};
{{LLMQA('In which year?', (SELECT * FROM (SELECT * FROM "./List of African films (4)") as w WHERE w.title = {{LLMQA("Which film is hers?", (SELECT * FROM documents WHERE documents MATCH 'cleo AND (born OR december)' ORDER BY rank LIMIT 3), options="w::title")}}), options='w::year')}};
SELECT director FROM "./List of African films (4)" as w WHERE title = {{LLMQA('Which film is 30 minutes long?' (SELECT * FROM documents WHERE documents MATCH 'togolese OR film' ORDER BY rank LIMIT 5) options='w::title')}};
SELECT EXISTS (SELECT * FROM w0 WHERE "family:" = 'asteraceae' AND attribute = 'order:');
SELECT ({{LLMValidate('Is it the 14th season?', (SELECT * FROM documents))}}) AND (SELECT (SELECT filledcolumnname FROM w0 ORDER BY pts DESC LIMIT 1) = 'sharks');
SELECT EXISTS(SELECT * FROM w0 WHERE "family:" = 'x' AND "0" = '1910') AND ({{LLMValidate('Is it accredited?', (SELECT * FROM documents))}});
SELECT merchant FROM transactions WHERE {{LLMMap('is this a pizza shop?', 'transactions::merchant')}} = TRUE AND parent_category = 'Food';
SELECT Id FROM posts p WHERE {{LLMMap('How does it feel?', Body, options=('positive', 'negative'))}} = 'positive';
SELECT preferred_foot FROM Player p WHERE p.player_name = {{/* chosen from the column */ LLMQA("Which player has the most Ballon d'Or awards?")}};
SELECT name FROM w WHERE state = {{LLMQA("Which is 'The Buckeye State'?", /* with context */ (SELECT title, content FROM documents))}};
/* three */ SELECT * FROM VALUES {{LLMQA('The first 3 letters?', quantifier='{3}')}};
SELECT COUNT(DISTINCT(s.CDSCode)) FROM schools s JOIN satscores sa ON s.CDSCode = sa.cds WHERE sa.AvgScrMath > 560 /* a boolean */ AND {{LLMMap('Is it in the Bay Area?', s.County)}} = TRUE;
SELECT GROUP_CONCAT(player_name, ', ') AS Names, {{LLMMap('When was she born?', 'Player::player_name', /* of another table */ options=Eras.Years)}} AS Born FROM Player GROUP BY Born;
SELECT * FROM Player p JOIN documents d ON {{LLMJoin(p.player_name, d.title)}} WHERE p.age > 21;
SELECT f.name, c.name FROM fruits f JOIN colors c ON {{LLMJoin(f.name, c.name, /* or by topic */ join_criteria='Align the fruit to its color.')}};
SELECT date, rival, score, documents.content AS "Team Description" FROM w JOIN {{LLMJoin(left_on='documents::title', right_on='w::rival')}} WHERE rival = 'waratahs';
SELECT DISTINCT venue FROM w WHERE city = 'sydney' AND {{LLMMap('More than 30 points?', 'w::score')}} = TRUE;
SELECT COUNT(*) AS "June Count" FROM w WHERE {{LLMMap("What's the full month name?", 'w::date')}} = 'June';
{{LLMQA("What's this table about?", (SELECT * FROM w LIMIT 1), options='sports;food;politics')}};
{{LLMQA('When did she retire?', (SELECT documents.title AS 'Competitor', documents.content FROM documents JOIN {{LLMJoin(left_on='w::name', right_on='documents::title')}} WHERE w.no = 7))}};
{{LLMQA('Which year?', (SELECT documents.title AS 'Player', documents.content FROM documents JOIN {{LLMJoin(left_on = 'w::name', right_on = 'documents::title')}} WHERE w.year = '1971-72'))}};
SELECT {{LLMMap('Name of the battle?', 'w::place of action')}} FROM w WHERE name = {{LLMQA('Who was born in December?', (SELECT documents.title, documents.content FROM documents JOIN {{LLMJoin(left_on='w::name', right_on='documents::title')}}) options = 'w::name')}};
{{LLMQA('How many films?', (SELECT title AS 'Director', content FROM documents JOIN {{LLMJoin(left_on='w::rival', right_on='documents::title')}} WHERE w.name = {{LLMQA('Which film is it?', (SELECT title, content FROM documents WHERE documents MATCH 'cab OR murder'), options='w::name')}}))}};
SELECT EXISTS (SELECT * FROM w0 WHERE platform = 1 AND {{LLMMap('Does it go there?', 'w0::stopping pattern')}} = TRUE) AND EXISTS (SELECT * FROM documents WHERE {{LLMMap('How many routes?', 'documents::content')}} = 3);
SELECT ({{LLMQA('Is it the 14th?', 'documents::content', options='t;f')}} = 't') AND (SELECT (SELECT filledcolumnname FROM w0 ORDER BY pts DESC LIMIT 1) = 'sharks');
SELECT EXISTS(SELECT * FROM w0 WHERE attribute = 'dean' AND value = 'al-qa''im') AND ({{LLMQA('Is it accredited (AACSB)?', 'documents::content', options = 't;f')}} = 't');
SELECT ({{LLMQA('Did he win in Yucatán?', (SELECT * FROM w0), options='t;f')}} = 't');
{{LLMQA("What was the recipient's nationality?", (SELECT title AS 'Recipient', content FROM documents WHERE documents MATCH (SELECT title || ' OR victoria' FROM "./List of African films (4)" WHERE SUBSTR(year, 0, 5) = '1961') ORDER BY rank LIMIT 1))}};
{{LLMQA("Which team?", (SELECT * FROM documents WHERE documents MATCH (SELECT director || ' OR hockey' FROM (SELECT * FROM "./List of African films (4)" UNION ALL SELECT * FROM "./List of African films (5)") as w WHERE SUBSTR(w.year, -2) = '19' LIMIT 1) ORDER BY rank LIMIT 1))}};
SELECT title FROM "./List of African films (4)" WHERE year = {{LLMQA('Which season?', (SELECT * FROM documents('sydney OR west') ORDER BY bm25(documents) LIMIT 1))}};
SELECT s.Phone FROM satscores ss JOIN schools s ON ss.cds = s.CDSCode WHERE {{LLMMap('Is it in the south?' , s.County)}} = TRUE AND ss.AvgScrRead IS NOT NULL ORDER BY ss.AvgScrRead ASC LIMIT 1;
SELECT SUM(ss.NumTstTakr) FROM satscores ss JOIN schools s ON s.CDSCode = ss.cds WHERE {{ LLMMap( 'How many live there? Guess.' , s.County ) }} > 2000000;
SELECT GSoffered FROM schools WHERE {{LLMMap('Is it in Silicon Valley?' , County)}} = TRUE AND County IS NOT NULL ORDER BY Longitude DESC LIMIT 1;
WITH top_names AS (SELECT AdmFName1 AS name, COUNT(AdmFName1) AS count FROM schools GROUP BY "AdmFName1" ORDER BY count DESC LIMIT 20) SELECT name FROM top_names WHERE {{LLMMap('Is it a female name?', name)}} = TRUE ORDER BY count DESC LIMIT 2;
SELECT COUNT(*) FROM posts p JOIN users u ON u.Id = p.OwnerUserId WHERE u.DisplayName = 'csgillespie' AND ParentId IS NULL AND {{LLMMap('Does it mention papers?', p.Body)}} = TRUE;
SELECT COUNT(*) FROM comments WHERE Score = 17 AND {{LLMMap('Is it about statistics?', Text)}} = TRUE;
WITH DateRange AS (SELECT * FROM VALUES {{LLMQA('Start and end of an Aquarius? In MM-DD.', regex='\d{2}-\d{2}', quantifier='{2}')}}) SELECT player_name FROM Player WHERE birthday LIKE '1970%' AND strftime('%m-%d', birthday) >= (SELECT min(column1, column2) FROM DateRange) AND strftime('%m-%d', birthday) <= (SELECT max(column1, column2) FROM DateRange);
SELECT l.name FROM League l JOIN Country c ON l.country_id = c.id WHERE {{LLMMap('Is this country landlocked?', 'c::name')}} = TRUE;
SELECT l.name FROM League l JOIN Country c ON l.id = c.id WHERE l.id < 4769 AND l.name = {{LLMQA('Which of these is in Italy?')}};
SELECT p.Title FROM posts p WHERE p.Id IN (SELECT PostId FROM comments c WHERE {{LLMMap('Is it kind?', c.Text)}} = TRUE) ORDER BY p.ViewCount DESC LIMIT 5;
SELECT Title, {{LLMMap('Sum it up in five words', posts.Body)}} AS gist FROM posts ORDER BY ViewCount DESC LIMIT 3;
SELECT Text FROM comments ORDER BY {{LLMMap('How sarcastic, 1 to 5?', Text, return_type='int')}} DESC, Score LIMIT 5;
{{LLMQA('Summarize the comments', (SELECT c.Text FROM comments c JOIN posts p ON p.Id = c.PostId WHERE p.Title = 'On R' ORDER BY c.Score DESC LIMIT 10))}};
SELECT {{LLMQA('Summarize the qualities of {}', (SELECT name FROM League WHERE id = 1), (SELECT name, country_id FROM League))}};
SELECT {{LLMQA('What is said of {}?', (SELECT name FROM League LIMIT 1))}};
SELECT * FROM {{LLMQA('Name three', return_type='List[str]')}};
SELECT Name FROM parks WHERE {{LLMMap('Is it bigger than 200 km2?', parks.Area)}} AND Location = 'Utah';
SELECT Name, {{ImageCaption('parks::Image')}} AS "Image Description", {{LLMMap(question='Size in km2?', context='parks::Area')}} AS size FROM parks WHERE Location = 'Maine' ORDER BY size DESC LIMIT 1;
SELECT Name, {{LLMMap('What is on it?', parks.Image, image=true)}} FROM parks;
SELECT "Name", "Location" FROM parks WHERE {{LLMMap('Is it a coastal state?', parks."Location")}};
SELECT reviewId FROM Reviews WHERE {{LLMMap('Is it positive?', reviewText)}} = TRUE LIMIT 5;
SELECT r1.id AS id, r1.reviewId AS reviewId1, r2.reviewId AS reviewId2 FROM Reviews r1 JOIN Reviews r2 ON r1.id = r2.id AND r1.reviewId < r2.reviewId WHERE {{LLMMap('Is it positive?', r1.reviewText)}} <> {{LLMMap('Is it positive?', r2.reviewText)}} LIMIT 10;
SELECT r1.reviewId, r2.reviewId FROM Reviews r1 JOIN Reviews r2 ON {{LLMJoin(r1.reviewText, r2.reviewText, join_criteria='opposite feelings')}} AND r1.reviewId <> r2.reviewId WHERE r1.id = 1;
SELECT COUNT(*) * 1.0 / (SELECT COUNT(*) FROM Reviews) AS positivity FROM Reviews WHERE {{LLMMap('Is it positive?', reviewText)}} = TRUE;
SELECT scoreSentiment, COUNT(*) FROM Reviews WHERE {{LLMMap('Which language?', reviewText, options=('en', 'fr'))}} = 'en' GROUP BY 1 HAVING COUNT(*) >= 1;
SELECT id, AVG({{LLMMap('From 1 to 5, how good?', reviewText, return_type='int')}}) AS score FROM Reviews GROUP BY id ORDER BY score DESC;
SELECT id, AVG({{LLMMap('From 1 to 5, how good?', reviewText, return_type='int', options=(1, 2, 3, 4, 5))}}) FROM Reviews GROUP BY id;
SELECT reviewId, {{LLMMap('Rate {} from 1 to 5', reviewText, return_type='int')}} AS s FROM Reviews WHERE id = 1 ORDER BY s;
SELECT constituents.Name FROM constituents JOIN portfolio ON constituents.Symbol = portfolio.Symbol WHERE {{LLMMap('Is it an oil company?', constituents.Name)}} AND portfolio.Quantity > 5;
SELECT Symbol FROM portfolio WHERE {{LLMMap('Does it sell phones?', Description)}} = TRUE AND Symbol IN (SELECT Symbol FROM constituents WHERE Sector = 'Tech') AND Quantity > (SELECT AVG(Quantity) FROM portfolio) / 4;
SELECT "Symbol", "Quantity" FROM portfolio WHERE "Symbol" = {{LLMQA('Which makes computers?', (SELECT Symbol, Description FROM portfolio))}};
SELECT SUM(amount) FROM transactions WHERE {{LLMMap('Is it gas?', merchant)}} = 1 AND date BETWEEN '2022-06-01' AND '2022-06-30';
SELECT strftime('%m', date) AS month, SUM(amount) FROM transactions WHERE {{LLMMap('Is it fast food?', merchant)}} GROUP BY month ORDER BY month;
SELECT merchant, amount FROM transactions t WHERE {{LLMMap('Is it Japanese?', t.merchant)}} OR (amount > 50 AND NOT {{LLMMap('Is it Italian?', t.merchant)}});
SELECT DISTINCT merchant, parent_category FROM transactions WHERE parent_category = 'Food' AND {{LLMMap('What kind of food?', 'transactions::merchant', options='sushi;burger;pizza')}} = 'sushi';
SELECT COUNT(*) FROM transactions WHERE parent_category = {{LLMQA('Which category is for cars?', options='transactions::parent_category')}};
SELECT COUNT(DISTINCT merchant) FROM transactions WHERE {{LLMMap('Is it a chain?', merchant)}} IS NOT FALSE;
WITH a AS (SELECT * FROM transactions WHERE amount > 5), b AS (SELECT * FROM a WHERE {{LLMMap('Is it food?', a.merchant)}} = TRUE) SELECT SUM(amount) FROM b;
WITH a AS (SELECT * FROM transactions WHERE amount > 5) SELECT a.merchant FROM a WHERE {{LLMMap('Is it food?', 'a::merchant')}} = TRUE UNION ALL SELECT 'none' WHERE NOT EXISTS (SELECT 1 FROM a);
SELECT * FROM transactions WHERE merchant IN {{LLMQA('Which are fast food?', (SELECT merchant FROM transactions), options=transactions.merchant, quantifier='*')}};
SELECT * FROM transactions WHERE merchant NOT IN {{LLMQA('Which are fast food?', options='transactions::merchant', modifier='+')}};
SELECT {{LLMQA('How many are cheap?', (SELECT merchant, amount FROM transactions), return_type='int')}} + 1;
SELECT {{LLMQA('Is any cheap?', (SELECT merchant, amount FROM transactions), return_type='bool')}} AS any;
SELECT {{LLMQA('Average?', (SELECT amount FROM transactions), output_type='float')}} > 3.5;
SELECT CASE {{LLMQA('Which is best?', options='a;b')}} WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 0 END;
SELECT CASE WHEN {{LLMQA('Is it good?', (SELECT * FROM w), options='t;f')}} = 't' THEN 'good' ELSE 'bad' END AS verdict;
SELECT name FROM w WHERE year = (SELECT year FROM w WHERE {{LLMMap('Is it a person?', name)}} ORDER BY no LIMIT 1);
SELECT name FROM w ORDER BY {{LLMMap('How many points?', 'w::score', return_type='int')}} DESC LIMIT 1 OFFSET 1;
SELECT "index", "round ( pick )" FROM w WHERE {{LLMMap('Was it the first round?', 'w::round ( pick )')}} = TRUE;
SELECT MAX({{LLMMap('How many points?', w.score, return_type='int')}}) - MIN({{LLMMap('How many points?', w.score, return_type='int')}}) FROM w;
SELECT SUM({{LLMMap('Did they win?', w.score)}} = TRUE) FROM w;
SELECT SUM(CASE WHEN {{LLMMap('Did they win?', w.score)}} THEN 1 ELSE 0 END) AS wins, COUNT(*) - wins FROM (SELECT score, 1 AS wins FROM w) AS w;
SELECT name FROM w WHERE CAST({{LLMMap('How many points?', 'w::score')}} AS INTEGER) > 20;
SELECT ROUND(AVG({{LLMMap('How many points?', 'w::score')}}), 2) FROM w;
SELECT (SELECT COUNT(*) FROM w WHERE {{LLMMap('Is it in June?', 'w::date')}} = TRUE) > (SELECT COUNT(*) FROM w WHERE {{LLMMap('Is it in May?', 'w::date')}} = TRUE);
SELECT EXISTS (SELECT 1 FROM w WHERE {{LLMMap('Is it in June?', 'w::date')}} = TRUE AND city = 'sydney') AND NOT EXISTS (SELECT 1 FROM w WHERE {{LLMMap('Is it in July?', 'w::date')}} = TRUE);
SELECT NOT EXISTS (SELECT 1 FROM w WHERE {{LLMMap('Is it in July?', 'w::date')}} = TRUE);
SELECT name FROM w WHERE {{LLMMap('Is it in June?', 'w::date')}} = 't' AND {{LLMMap('Is it near?', 'w::city')}} = 'f';
SELECT name FROM w WHERE {{LLMMap('Is it in June?', 'w::date')}} = 'true';
SELECT name FROM w WHERE {{LLMMap('Which month?', 'w::date', options='May;June;July')}} IN ('May', 'June');
SELECT name FROM w WHERE {{LLMMap('Which month?', 'w::date')}} LIKE 'Ju%';
SELECT name FROM w WHERE {{LLMMap('Which month?', 'w::date')}} != 'May' AND {{LLMMap('Which month?', 'w::date')}} <> 'July';
SELECT w.name, documents.content FROM w JOIN documents ON {{LLMJoin(left_on='w::name', right_on='documents::title')}} WHERE documents.content LIKE '%born%';
SELECT w.name FROM w LEFT JOIN documents ON {{LLMJoin('w::city', 'documents::title')}} WHERE documents.title IS NULL;
SELECT w.name, d.content FROM w JOIN documents AS d ON {{LLMJoin(left_on='w::name', right_on='d::title')}};
SELECT a.title, b.title FROM documents a, documents b WHERE a.title < b.title AND {{LLMMap('Do they mean the same? {} {}', a.title, b.title)}} = TRUE;
SELECT content FROM documents WHERE documents MATCH 'sydney' AND {{LLMMap('Is it a city?', 'documents::content')}} = TRUE ORDER BY rank LIMIT 1;
{{LLMQA('Which date?', (SELECT content FROM documents WHERE title IN (SELECT title FROM documents WHERE documents MATCH 'cleo' ORDER BY rank LIMIT 3)))}};
{{
    LLMQA(
        'What is this city known for?',
        (
            SELECT content FROM documents
            WHERE title = (SELECT city FROM w WHERE no = 7)
        ),
        long_answer=True
    )
}};
SELECT {{
    LLMQA(
        'In which year was she born?',
        (SELECT d.title, d.content FROM documents d JOIN {{LLMJoin(left_on='w::name', right_on='d::title')}}),
        return_type='substring'
    )
}}::INT + 1;
{{LLMQA('Who?', (SELECT * FROM w WHERE {{LLMMap('Is it a person?', 'w::name')}} = TRUE), options='w::name')}};
{{LLMQA('Who?', context=(SELECT * FROM w), options=(SELECT DISTINCT name FROM w WHERE no > 0))}};
{{LLMQA(question='Who?', context=(SELECT * FROM w), options=['Ann', 'Bo'])}};
{{LLMQA('Who?', (SELECT name, 'x' AS "Two Words" FROM w), example_outputs=['Ann', 'Bo'], return_type='str')}};
SELECT {{LLMQA('Which?', (SELECT title FROM documents), regex='[A-Z]+')}};
SELECT {{LLMQA('Which?', (SELECT title FROM documents WHERE title LIKE '%''s%'))}};
SELECT {{LLMQA('Does "the" win?', (SELECT "common name" FROM w))}};
SELECT {{LLMQA('How much is 50%?')}};
SELECT {{LLMQA('Is {a} set?', (SELECT 1))}};
SELECT player_name FROM Player WHERE player_name = {{LLMQA('Who was born on a Sunday?', (SELECT player_name, birthday FROM Player), options='Player::player_name')}} AND age > 10;
SELECT {{LLMMap('Which sign of the zodiac?', Player.birthday, options=('Aquarius', 'Taurus', 'Leo'))}} AS sign, GROUP_CONCAT(player_name) FROM Player GROUP BY sign ORDER BY COUNT(*) DESC, sign;
SELECT player_name, CASE WHEN {{LLMMap('Is it a woman?', player_name)}} = TRUE THEN 'she' ELSE 'he' END FROM Player;
SELECT player_name FROM Player WHERE LENGTH(player_name) > 1 AND {{LLMMap('Is it short?', player_name)}} AND birthday > date('1960-01-01') ORDER BY LOWER(player_name) COLLATE NOCASE;
SELECT COALESCE({{LLMMap('Her club?', player_name)}}, 'none') FROM Player;
SELECT player_name || ' (' || {{LLMMap('Her club?', player_name)}} || ')' FROM Player;
SELECT UPPER({{LLMMap('Her club?', player_name)}}), player_name FROM Player WHERE age IN (20, 30);
SELECT * FROM (SELECT player_name, {{LLMMap('Her club?', player_name)}} AS club FROM Player) WHERE club IS NOT NULL;
SELECT club, COUNT(*) FROM (SELECT {{LLMMap('Her club?', player_name)}} AS club FROM Player) t GROUP BY club HAVING COUNT(*) > 0;
SELECT RANK() OVER (ORDER BY {{LLMMap('How famous, 1 to 9?', player_name, return_type='int')}} DESC) AS r, player_name FROM Player;
SELECT player_name FROM Player WHERE age = (SELECT MAX(age) FROM Player) AND {{LLMMap('Is she tall?', 'Player::player_name')}};
SELECT p.player_name FROM Player AS p, League AS l WHERE p.age > l.id AND {{LLMMap('Does {} play in {}?', p.player_name, l.name)}};
SELECT p.player_name FROM Player p CROSS JOIN Country c WHERE {{LLMMap('Is she from there?', p.player_name, c.name)}} = TRUE AND c.name = 'Italy';
-- refused: hqdl runs only SELECT
INSERT INTO w (name) VALUES ({{LLMQA('Who?')}});
SELECT {{LLMMap('Her club?', player_name, batch_size=10, max_tokens=5)}} FROM Player;
SELECT {{LLMMap('Her club?', player_name, enable_constrained_decoding=False)}} FROM Player;
SELECT {{LLMMap('Which colour?', fruits.name, options=colors.name)}} AS c, fruits.name FROM fruits;
SELECT {{LLMMap('Which colour?', 'fruits::name', options='colors::name')}} FROM fruits WHERE name != 'plum';
SELECT {{LLMMap('Which colours?', fruits.name, options=(SELECT name FROM colors), quantifier='{1,2}', return_type='list[str]')}} FROM fruits;
SELECT j.value FROM fruits f, json_each({{LLMMap('Which colours?', f.name, return_type='list[str]')}}) j;
-- refused: is not a return type
SELECT {{LLMMap('How many?', fruits.name, return_type='Optional[int]')}} FROM fruits;
-- refused: is not a return type
SELECT {{LLMMap('Its code?', fruits.name, return_type='Literal["a", "b"]')}} FROM fruits;
SELECT {{LLMMap('Which?', fruits.name, return_type='list[int]')}} FROM fruits;
SELECT {{LLMMap('Which one?', fruits.name, options=[1, 2, 3])}} FROM fruits;
SELECT * FROM fruits f JOIN {{LLMJoin(left_on='f::name', right_on='colors::name')}};
SELECT * FROM fruits JOIN {{LLMJoin(left_on=fruits.name, right_on=colors.name)}};
SELECT fruits.name FROM fruits JOIN {{LLMJoin('fruits::name', 'colors::name')}} JOIN {{LLMJoin('colors::name', 'documents::title')}};
SELECT fruits.name FROM fruits JOIN {{LLMJoin(left_on='colors::name', right_on='fruits::name', join_criteria='the colour of the fruit')}} ORDER BY colors.name;
SELECT f.name FROM fruits f JOIN colors c ON {{LLMJoin(f.name, c.name)}} AND c.name = 'red';
SELECT f.name FROM fruits f INNER JOIN colors c ON c.name = 'red' AND {{LLMJoin(left_on=f.name, right_on=c.name)}} LIMIT 1;
select name from fruits where {{llmmap('Is it red?', name)}} = true;
SELECT name FROM fruits WHERE {{ LLMMap ( 'Is it red?' , name ) }} = TRUE ;
SELECT `name` FROM `fruits` WHERE {{LLMMap('Is it red?', `fruits`.`name`)}};
SELECT [name] FROM [fruits] WHERE {{LLMMap('Is it red?', fruits.name)}};
SELECT name FROM main.fruits WHERE {{LLMMap('Is it red?', name)}};
SELECT name -- which
FROM fruits WHERE {{LLMMap('Is it red?', -- asked
  name)}};
SELECT s.City, COUNT(*) FROM schools s WHERE {{LLMMap('Is it by the sea?', s.City)}} = TRUE GROUP BY s.City HAVING COUNT(*) > 0 ORDER BY 2 DESC;
SELECT {{LLMQA('Who wrote it?', (SELECT u.DisplayName FROM users u JOIN posts p ON p.OwnerUserId = u.Id WHERE {{LLMMap('Is it about R?', p.Title)}} = TRUE))}} AS author;
SELECT (SELECT Name FROM parks WHERE Location = {{LLMQA('Which is in the east?', options=parks.Location)}} LIMIT 1) AS park;
