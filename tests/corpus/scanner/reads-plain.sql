SELECT name, count(*) FROM ship WHERE built > 1900 GROUP BY name;
