-- Forms in which SUQL's documentation, prompts and parsers write queries, in words of our own.
-- As `blendsql.sql` is written.

SELECT * FROM restaurants WHERE answer(reviews, 'is it romantic?') = 'Yes';
SELECT name, summary(reviews) FROM restaurants WHERE 'italian' = ANY (cuisines) LIMIT 3;
SELECT name, answer(reviews, 'what is good there?') FROM restaurants WHERE rating >= 4.0 ORDER BY num_reviews DESC LIMIT 1;
SELECT * FROM restaurants WHERE answer(reviews, 'is it loud?') = 'No' AND price = 'cheap';
SELECT * FROM restaurants WHERE answer(popular_dishes, 'is there pizza?') = 'Yes' AND location ILIKE '%bay%' LIMIT 3;
SELECT summary(reviews), answer(reviews, 'does it have parking?') FROM restaurants WHERE name ILIKE '%luigi%';
SELECT COUNT(*) FROM restaurants WHERE answer(reviews, 'is it romantic?') = 'yes';
SELECT r.name FROM restaurants r WHERE answer(r.reviews, 'is it romantic?') <> 'No';
SELECT name FROM restaurants WHERE answer(reviews, 'how are the waiters?') ILIKE '%kind%';
SELECT name FROM restaurants WHERE answer(reviews, 'how many stars?')::int > 3;
SELECT name FROM restaurants WHERE CAST(answer(reviews, 'how many stars?') AS INTEGER) > 3;
SELECT AVG(answer(reviews, 'what does a meal cost?')::numeric) FROM restaurants;
SELECT name, rating::text FROM restaurants WHERE num_reviews::float > 10;
SELECT name FROM restaurants WHERE boolean_answer(reviews, 'is it romantic?');
SELECT name FROM restaurants WHERE boolean_answer(reviews, 'is it romantic?') = TRUE;
SELECT name FROM restaurants ORDER BY boolean_answer_score(reviews, 'is it romantic?') DESC LIMIT 2;
SELECT name FROM restaurants WHERE is_relevant(reviews, 'is there sushi?');
SELECT name FROM restaurants WHERE price = 'moderate'::price_range;
SELECT name FROM restaurants WHERE price IN ('cheap', 'moderate') AND NOT 'thai' = ANY (cuisines);
SELECT name FROM restaurants WHERE cuisines @> ARRAY['thai'];
SELECT name FROM restaurants WHERE cuisines && ARRAY['thai', 'greek'];
SELECT name FROM restaurants WHERE 'thai' = ANY(cuisines) OR 'greek' = ANY(cuisines);
SELECT unnest(cuisines) AS c, COUNT(*) FROM restaurants GROUP BY c ORDER BY 2 DESC;
SELECT DISTINCT unnest(cuisines) FROM restaurants;
SELECT array_length(cuisines, 1) FROM restaurants WHERE cardinality(popular_dishes) > 0;
SELECT regexp_replace(name, 'a', 'b', 'g') FROM restaurants;
SELECT COUNT(r.*) FROM restaurants r;
SELECT name FROM public.restaurants WHERE rating > 3;
SELECT name FROM restaurants WHERE rating = (SELECT MAX(rating) FROM restaurants);
SELECT price, AVG(rating) FROM restaurants GROUP BY price HAVING COUNT(*) > 0 ORDER BY AVG(rating) DESC NULLS LAST;
SELECT name || ' in ' || location FROM restaurants WHERE location IS NOT NULL;
SELECT STRING_AGG(name, ', ') FROM restaurants;
SELECT name FROM restaurants WHERE name ~* '^l' LIMIT 3 OFFSET 0;
SELECT name FROM restaurants WHERE opening_hours LIKE '%24%' ORDER BY rating DESC FETCH FIRST 2 ROWS ONLY;
SELECT EXTRACT(YEAR FROM opened) FROM restaurants;
SELECT name FROM restaurants WHERE opened > CURRENT_DATE - INTERVAL '400 years';
SELECT name FROM restaurants WHERE opened BETWEEN '2000-01-01' AND '2030-01-01';
SELECT to_char(opened, 'YYYY') FROM restaurants;
SELECT COALESCE(NULLIF(location, ''), 'nowhere') FROM restaurants;
SELECT name FROM restaurants WHERE lower(name) = 'luigi''s';
WITH good AS (SELECT * FROM restaurants WHERE rating > 3) SELECT name FROM good WHERE answer(reviews, 'is it loud?') = 'Yes';
SELECT name FROM (SELECT name, reviews FROM restaurants WHERE rating > 3) AS t WHERE answer(t.reviews, 'is it loud?') = 'Yes';
SELECT a.name FROM restaurants a JOIN restaurants b ON a.price = b.price AND a._id <> b._id WHERE answer(a.reviews, 'is it loud?') = 'Yes';
SELECT name FROM restaurants WHERE answer(reviews, 'is it loud?') = 'Yes' UNION SELECT name FROM restaurants WHERE rating > 4;
SELECT CASE WHEN answer(reviews, 'is it loud?') = 'Yes' THEN 'loud' ELSE 'quiet' END FROM restaurants;
SELECT answer(summary(reviews), 'is it loud?') FROM restaurants LIMIT 1;
SELECT EXISTS (SELECT 1 FROM restaurants WHERE answer(reviews, 'is it loud?') = 'Yes');
SELECT name FROM restaurants WHERE answer(reviews, 'is it loud?') IN ('Yes', 'No') LIMIT 1;
SELECT "name" FROM "restaurants" WHERE "rating" >= 3;
SELECT DISTINCT ON (price) price, name FROM restaurants ORDER BY price, rating DESC;
SELECT DISTINCT ON (price) price AS p, name, answer(reviews, 'is it loud?') AS loud FROM restaurants r WHERE rating > 1 ORDER BY p, r.rating DESC NULLS LAST LIMIT 5;
SELECT DISTINCT ON (lower(price)) name FROM restaurants;
SELECT name FROM restaurants WHERE _id IN (SELECT DISTINCT ON (price) _id FROM restaurants ORDER BY price, rating DESC);
SELECT DISTINCT ON (1) price, count(*) FROM restaurants GROUP BY price, location ORDER BY 1, 2 DESC;
-- refused: queries are read-only
SELECT name FROM restaurants FOR UPDATE;
SELECT DISTINCT ON (price) * FROM restaurants;
SELECT name, to_char(rating, 'FM9.0') FROM restaurants WHERE answer(reviews, 'is it loud?') = 'Yes';
-- refused: list its columns
SELECT DISTINCT ON (price) * FROM (SELECT * FROM restaurants) r;
-- refused: queries are read-only
SELECT name INTO copy FROM restaurants;
