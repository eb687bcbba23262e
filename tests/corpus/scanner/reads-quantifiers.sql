SELECT {{LLMQA('a', quantifier='+')}}, {{LLMQA('b', quantifier='{1,}')}}, {{LLMQA('c', quantifier='{,4}', regex='[a-z]+')}}
