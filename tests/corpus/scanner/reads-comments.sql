-- it's {{ not a call }}
SELECT /* '{{' */ {{ -- a ' here
 LLMMap /* ( */ ( 'q?' -- , )
 , /* }} */ c ) }} FROM t -- end