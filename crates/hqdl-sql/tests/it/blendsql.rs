//! Scanning the calls of a query: parsed calls, and errors with a caret at their position.

use hqdl_sql::blendsql::{
    Argument, Call, Choices, Quantifier, SqlError, ingredients, mask_calls, scan_calls,
};
use hqdl_values::value::Value;
use proptest::prelude::*;

/// Formats a call on one line, with the source text of its byte ranges.
fn format_call(sql: &str, call: &Call) -> String {
    let mut parts = vec![format!("{} {:?}", call.ingredient.name(), call.question)];
    for value in &call.values {
        parts.push(match value {
            Argument::Column { table, column, span } => {
                format!(
                    "column {} of {} <{}>",
                    column,
                    table.as_deref().unwrap(),
                    &sql[span.clone()]
                )
            }
            Argument::Sql(span) => format!("sql <{}>", &sql[span.clone()]),
            Argument::Query(span) => format!("query <{}>", &sql[span.clone()]),
        });
    }
    parts.extend(call.options.as_ref().map(|options| match options {
        Choices::List(values) => format!("options {}", format_list(values)),
        Choices::Column { table, column, span } => {
            let table = table.as_deref().unwrap_or("-");
            format!("options {column} of {table} <{}>", &sql[span.clone()])
        }
        Choices::Query(span) => format!("options query <{}>", &sql[span.clone()]),
        Choices::RowList(span) => format!("options of each row <{}>", &sql[span.clone()]),
    }));
    parts.extend(call.return_type.map(|r| {
        let name = r.scalar.name();
        if r.is_list { format!("list of {name}") } else { name.to_owned() }
    }));
    parts.extend(call.quantifier.map(|q| match q.max {
        Some(max) => format!("{}..{max}", q.min),
        None => format!("{}..", q.min),
    }));
    parts.extend(call.regex.as_ref().map(|r| format!("regex {r}")));
    parts.extend(call.model.as_ref().map(|(name, _)| format!("model {name}")));
    parts.extend(call.tuning.iter().map(|name| format!("told {name}")));
    if call.is_values_row {
        parts.push(String::from("row"));
    }
    parts.extend(call.inner.iter().map(|c| format!("[{}]", format_call(sql, c))));
    parts.join("; ")
}

fn format_list(values: &[Value]) -> String {
    values.iter().map(|v| v.to_json().to_string()).collect::<Vec<_>>().join(" ")
}

fn format_calls(sql: &str) -> Vec<String> {
    match scan_calls(sql) {
        Ok(calls) => calls.iter().map(|c| format_call(sql, c)).collect(),
        Err(error) => panic!("{sql}\n{}", error.render(sql, false)),
    }
}

/// Returns the error's message, the text under the caret, the label and the help.
fn scan_error(sql: &str) -> (String, String, String, Option<String>) {
    match scan_calls(sql) {
        Ok(calls) => panic!("{sql} was read: {calls:?}"),
        Err(error) => {
            (error.message.clone(), sql[error.span.clone()].to_owned(), error.label, error.help)
        }
    }
}

#[test]
fn calls_are_parsed_in_every_syntax() {
    let cases = [
        // Current syntax: names and expressions.
        ("LLMMap('q?', c)", "LLMMap \"q?\"; sql <c>"),
        ("LLMMap('q?', t.c)", "LLMMap \"q?\"; sql <t.c>"),
        ("LLMMap('q?', t . \"Run Date\")", "LLMMap \"q?\"; sql <t . \"Run Date\">"),
        ("LLMMap('q?', \"Run Date\")", "LLMMap \"q?\"; sql <\"Run Date\">"),
        ("LLMMap('q?', [Run, Date])", "LLMMap \"q?\"; sql <[Run, Date]>"),
        ("LLMMap('q?', `a,b`)", "LLMMap \"q?\"; sql <`a,b`>"),
        ("LLMMap('q?', main.t.c)", "LLMMap \"q?\"; sql <main.t.c>"),
        ("LLMMap('q?', t.m || ' ' || t.c)", "LLMMap \"q?\"; sql <t.m || ' ' || t.c>"),
        ("LLMMap('q?', CONCAT('a,)', b), c)", "LLMMap \"q?\"; sql <CONCAT('a,)', b)>; sql <c>"),
        ("LLMMap('q?', (t.c))", "LLMMap \"q?\"; sql <(t.c)>"),
        ("LLMMap('q?', (a) || (b))", "LLMMap \"q?\"; sql <(a) || (b)>"),
        ("LLMMap('q?', x -> '$.a')", "LLMMap \"q?\"; sql <x -> '$.a'>"),
        ("LLMMap('q?', (c = 1), c == 2)", "LLMMap \"q?\"; sql <(c = 1)>; sql <c == 2>"),
        ("LLMMap('q?', t.c = 1)", "LLMMap \"q?\"; sql <t.c = 1>"),
        (
            "LLMMap('q?', -1.5e-3, x'0f', NULL)",
            "LLMMap \"q?\"; sql <-1.5e-3>; sql <x'0f'>; sql <NULL>",
        ),
        (
            "LLMMap('q?', ?, ?2, :x, @y, $z)",
            "LLMMap \"q?\"; sql <?>; sql <?2>; sql <:x>; sql <@y>; sql <$z>",
        ),
        ("LLMMap('q?', c COLLATE nocase)", "LLMMap \"q?\"; sql <c COLLATE nocase>"),
        (
            "LLMMap('q?', CASE WHEN model = 'x' THEN 1 END)",
            "LLMMap \"q?\"; sql <CASE WHEN model = 'x' THEN 1 END>",
        ),
        ("LLMMap('q?', größe, 漢字)", "LLMMap \"q?\"; sql <größe>; sql <漢字>"),
        ("LLMMap('q?', with)", "LLMMap \"q?\"; sql <with>"),
        // Legacy syntax.
        ("LLMMap('q?', 't::c')", "LLMMap \"q?\"; column c of t <'t::c'>"),
        ("LLMMap('q?', \"t::c\")", "LLMMap \"q?\"; column c of t <\"t::c\">"),
        ("LLMMap('q?', t::c)", "LLMMap \"q?\"; column c of t <t::c>"),
        ("LLMMap('q?', (t::c))", "LLMMap \"q?\"; column c of t <(t::c)>"),
        ("LLMMap('q?', ( 't::c' ))", "LLMMap \"q?\"; column c of t <( 't::c' )>"),
        ("LLMMap('q?', t :: [Run Date])", "LLMMap \"q?\"; column Run Date of t <t :: [Run Date]>"),
        (
            "LLMMap('q?', 'my t::Amount ($)')",
            "LLMMap \"q?\"; column Amount ($) of my t <'my t::Amount ($)'>",
        ),
        (
            "LLMMap('q?', '\"my t\"::`a``b`')",
            "LLMMap \"q?\"; column a`b of my t <'\"my t\"::`a``b`'>",
        ),
        ("LLMMap('q?' 't::c')", "LLMMap \"q?\"; column c of t <'t::c'>"),
        (
            "LLMMap('q?'\n't::c', options='u::d')",
            "LLMMap \"q?\"; column c of t <'t::c'>; options d of u <'u::d'>",
        ),
        ("LLMMap('q?' \"t::c\")", "LLMMap \"q?\"; column c of t <\"t::c\">"),
        ("LLMMap('q?' t.c || 'x', d)", "LLMMap \"q?\"; sql <t.c || 'x'>; sql <d>"),
        ("LLMMap('q?' 'Name: ' || c)", "LLMMap \"q?\"; sql <'Name: ' || c>"),
        ("LLMMap('q?' (t::c))", "LLMMap \"q?\"; column c of t <(t::c)>"),
        ("LLMMap('q?', context='t::c')", "LLMMap \"q?\"; column c of t <'t::c'>"),
        (
            "LLMMap('q?', 't::c', output_type='boolean', table='a;b', pattern='x')",
            "LLMMap \"q?\"; column c of t <'t::c'>; boolean; regex x; told table",
        ),
        // Texts that are not columns.
        ("LLMQA('q {}', 'hello', 4)", "LLMQA \"q {}\"; sql <'hello'>; sql <4>"),
        (
            "LLMQA('q {}', 'a::b::c', '::', 'a::', 'is it a::b?')",
            "LLMQA \"q {}\"; sql <'a::b::c'>; sql <'::'>; sql <'a::'>; sql <'is it a::b?'>",
        ),
        // Questions.
        ("LLMQA('it''s')", "LLMQA \"it's\""),
        ("LLMQA(\"What's \"\"this\"\"?\")", "LLMQA \"What's \\\"this\\\"?\""),
        ("LLMQA('a\\')", "LLMQA \"a\\\\\""),
        ("LLMQA('{{x}} -- /* }}')", "LLMQA \"{{x}} -- /* }}\""),
        ("llmqa ( 'q?' )", "LLMQA \"q?\""),
        ("LLMMap(c, question='q?')", "LLMMap \"q?\"; sql <c>"),
        ("LLMMap(question='q?', value=c)", "LLMMap \"q?\"; sql <c>"),
        ("LLMMap(d, VALUES=c, Question=\"q?\")", "LLMMap \"q?\"; sql <c>; sql <d>"),
        (
            "LLMMap('q?', d, value='t::c', context=e)",
            "LLMMap \"q?\"; column c of t <'t::c'>; sql <d>; sql <e>",
        ),
        // Whitespace, comments and a trailing comma.
        (
            "LLMMap(\n\t'q?' -- it's, )\n , /* ' , */ c /* ) }} */ -- }}\n, )",
            "LLMMap \"q?\"; sql <c>",
        ),
        ("LLMMap('q?', a /* , */ || -- ' )\n b)", "LLMMap \"q?\"; sql <a /* , */ || -- ' )\n b>"),
        // Queries.
        ("LLMQA('q?', (SELECT ',)' FROM t))", "LLMQA \"q?\"; query <SELECT ',)' FROM t>"),
        ("LLMQA('q?', ( -- it's\n select 1 /* ) */ -- x\n))", "LLMQA \"q?\"; query <select 1>"),
        ("LLMQA('q?', ((SELECT 1)))", "LLMQA \"q?\"; query <SELECT 1>"),
        (
            "LLMQA('q?', (WITH a AS (SELECT 1) SELECT * FROM a))",
            "LLMQA \"q?\"; query <WITH a AS (SELECT 1) SELECT * FROM a>",
        ),
        ("LLMQA('q?', (VALUES (1), (2)))", "LLMQA \"q?\"; query <VALUES (1), (2)>"),
        ("LLMQA('q?', (SELECT 1) + (SELECT 2))", "LLMQA \"q?\"; sql <(SELECT 1) + (SELECT 2)>"),
        ("LLMQA('q?', EXISTS (SELECT 1))", "LLMQA \"q?\"; sql <EXISTS (SELECT 1)>"),
        (
            "LLMQA('q?', context=(SELECT 1), context=(SELECT 2))",
            "LLMQA \"q?\"; query <SELECT 1>; query <SELECT 2>",
        ),
        ("LLMQA('q?', (SELECT 1), context=None, options=NULL)", "LLMQA \"q?\"; query <SELECT 1>"),
        ("LLMValidate('q?', (SELECT 1))", "LLMValidate \"q?\"; query <SELECT 1>"),
        // Options.
        ("LLMQA('q?', options=('a', 'b,)'))", "LLMQA \"q?\"; options \"a\" \"b,)\""),
        ("LLMQA('q?', options=['a]', \"b\"\"\",])", "LLMQA \"q?\"; options \"a]\" \"b\\\"\""),
        ("LLMQA('q?', options=('x'))", "LLMQA \"q?\"; options \"x\""),
        ("LLMQA('q?', options=('x',))", "LLMQA \"q?\"; options \"x\""),
        ("LLMQA('q?', options=(\"x\"))", "LLMQA \"q?\"; options \"x\""),
        ("LLMQA('q?', options=('t::c', 'u'))", "LLMQA \"q?\"; options \"t::c\" \"u\""),
        (
            "LLMQA('q?', options=(1, -2, +3, 4.5, .5, 1e3, 9223372036854775808, -9223372036854775808))",
            "LLMQA \"q?\"; options 1 -2 3 4.5 0.5 1000.0 9.223372036854776e+18 -9223372036854775808",
        ),
        ("LLMQA('q?', options=(True, false, None, NULL))", "LLMQA \"q?\"; options 1 0 null null"),
        ("LLMQA('q?', options='t::c')", "LLMQA \"q?\"; options c of t <'t::c'>"),
        ("LLMQA('q?', options=(t::c))", "LLMQA \"q?\"; options c of t <(t::c)>"),
        ("LLMQA('q?', options=('t::c'))", "LLMQA \"q?\"; options c of t <('t::c')>"),
        ("LLMQA('q?', options=t.c)", "LLMQA \"q?\"; options c of t <t.c>"),
        ("LLMQA('q?', options=(t.\"c d\"))", "LLMQA \"q?\"; options c d of t <(t.\"c d\")>"),
        ("LLMQA('q?', options=c)", "LLMQA \"q?\"; options c of - <c>"),
        ("LLMQA('q?', options=\"c d\")", "LLMQA \"q?\"; options c d of - <\"c d\">"),
        (
            "LLMQA('q?', options=( /* ' */ SELECT c FROM t))",
            "LLMQA \"q?\"; options query <SELECT c FROM t>",
        ),
        ("LLMQA('q?', options='yes; no')", "LLMQA \"q?\"; options \"yes\" \"no\""),
        // Options of the answer.
        ("LLMQA('q?', return_type='str')", "LLMQA \"q?\"; text"),
        ("LLMQA('q?', return_type=\"Integer\")", "LLMQA \"q?\"; integer"),
        ("LLMQA('q?', return_type='float')", "LLMQA \"q?\"; real"),
        ("LLMQA('q?', return_type=bool)", "LLMQA \"q?\"; boolean"),
        ("LLMQA('q?', return_type='date')", "LLMQA \"q?\"; date"),
        ("LLMQA('q?', return_type='List[str]')", "LLMQA \"q?\"; list of text"),
        ("LLMQA('q?', return_type=list[ Int ])", "LLMQA \"q?\"; list of integer"),
        ("LLMQA('q?', return_type='list')", "LLMQA \"q?\"; list of text"),
        ("LLMQA('q?', quantifier='{2}')", "LLMQA \"q?\"; 2..2"),
        ("LLMQA('q?', quantifier='{1, 3}')", "LLMQA \"q?\"; 1..3"),
        ("LLMQA('q?', quantifier='{4,}')", "LLMQA \"q?\"; 4.."),
        ("LLMQA('q?', quantifier='{,4}')", "LLMQA \"q?\"; 0..4"),
        ("LLMQA('q?', quantifier='+')", "LLMQA \"q?\"; 1.."),
        ("LLMQA('q?', quantifier='*')", "LLMQA \"q?\"; 0.."),
        ("LLMQA('q?', quantifier=\"?\")", "LLMQA \"q?\"; 0..1"),
        (
            "LLMQA('q?', regex='\\d{4}, it''s', limit=10)",
            "LLMQA \"q?\"; regex \\d{4}, it's; told limit",
        ),
        // Tuning arguments of BlendSQL.
        (
            "LLMMap('q?', c, batch_size=5, searcher=[{'a]': 'b}', \"c\": {'d': (1, 2)}}], few_shot=0, max_tokens=20, model='m', context_formatter=f(x, y), list_options_in_prompt=False, table=t)",
            "LLMMap \"q?\"; sql <c>; model m; told batch_size; told searcher; told max_tokens; told context_formatter; told list_options_in_prompt; told table",
        ),
        // Instructions to the model are part of the question.
        (
            "LLMMap('How many?', c, example_outputs=['1 or 2', 3], return_type='substring', long_answer=True)",
            "LLMMap \"How many? Answers look like these: 1 or 2; 3. Answer with a part of the text, word by word. Answer at length.\"; sql <c>; text",
        ),
        (
            "LLMMap('q?', c, example_outputs='a;b')",
            "LLMMap \"q? Answers look like these: a; b.\"; sql <c>",
        ),
        // Former keywords.
        ("LLMQA('q?', modifier='{2}')", "LLMQA \"q?\"; 2..2"),
        ("LLMQA('q?', options='big city')", "LLMQA \"q?\"; options \"big city\""),
        (
            "LLMMap('q', 't::c' options='a;b')",
            "LLMMap \"q\"; column c of t <'t::c'>; options \"a\" \"b\"",
        ),
        (
            "LLMMap('q', t.c options='a;b' return_type='str')",
            "LLMMap \"q\"; sql <t.c>; options \"a\" \"b\"; text",
        ),
        ("LLMQA('q' options='a;b')", "LLMQA \"q\"; options \"a\" \"b\""),
        ("LLMMap('q', (a) limit = 3)", "LLMMap \"q\"; sql <(a)>; told limit"),
        // Joins.
        ("LLMJoin(l.a, r.\"b c\")", "LLMJoin \"\"; sql <l.a>; sql <r.\"b c\">"),
        (
            "LLMJoin(left_on='t::c', right_on='u::d')",
            "LLMJoin \"\"; column c of t <'t::c'>; column d of u <'u::d'>",
        ),
        (
            "LLMJoin(right_on=b, left_on=a, join_criteria='same')",
            "LLMJoin \"same\"; sql <a>; sql <b>",
        ),
        ("LLMJoin(a, right_on=b, question='same')", "LLMJoin \"same\"; sql <a>; sql <b>"),
        ("LLMJoin(a, b, 'same',)", "LLMJoin \"same\"; sql <a>; sql <b>"),
        // Nested calls.
        (
            "LLMMap('q?', {{LLMMap('r?', c)}})",
            "LLMMap \"q?\"; sql <{{LLMMap('r?', c)}}>; [LLMMap \"r?\"; sql <c>]",
        ),
        (
            "LLMMap('q?', 'a' || upper({{LLMQA('r?')}}))",
            "LLMMap \"q?\"; sql <'a' || upper({{LLMQA('r?')}})>; [LLMQA \"r?\"]",
        ),
        (
            "LLMQA('q?', (SELECT {{LLMMap('r?', c)}} FROM t), options=(SELECT * FROM (VALUES {{LLMQA('s?')}}, (1), {{LLMQA('u?')}})))",
            "LLMQA \"q?\"; query <SELECT {{LLMMap('r?', c)}} FROM t>; options query <SELECT * FROM (VALUES {{LLMQA('s?')}}, (1), {{LLMQA('u?')}})>; [LLMMap \"r?\"; sql <c>]; [LLMQA \"s?\"; row]; [LLMQA \"u?\"; row]",
        ),
    ];
    for (call, expected) in cases {
        for (before, after) in
            [("SELECT {{", "}} FROM t"), ("{{", "}}"), ("-- it's\n\t{{ ", "\n}};")]
        {
            let sql = format!("{before}{call}{after}");
            assert_eq!(format_calls(&sql), [expected], "{sql}");
            let found = &scan_calls(&sql).unwrap()[0];
            assert_eq!(
                &sql[found.span.clone()],
                sql[before.find("{{").unwrap()..].trim_end_matches(" FROM t").trim_end_matches(';')
            );
        }
    }
}

#[test]
fn braces_in_texts_comments_and_names_are_not_calls() {
    let cases = [
        "SELECT '{{LLMQA(1)}}', '}}', 'it''s {{'",
        "SELECT \"{{\", \"a\"\"{{\" FROM t",
        "SELECT `{{`, `a``{{` FROM t",
        "SELECT [{{] FROM [}}]",
        "SELECT 1 -- {{ it's }}",
        "SELECT 1 -- it's\n, 2 /* {{ ' */, 3",
        "SELECT 1 /* never closed {{",
        "SELECT x'7b7b', 1-2, 4/2, 3*-1, a->>'{{'",
        "SELECT {x} FROM t",
        "DELETE FROM w WHERE TRUE;",
        "",
    ];
    for sql in cases {
        assert_eq!(scan_calls(sql), Ok(vec![]), "{sql}");
        assert_eq!(mask_calls(sql, &[]), sql);
    }
    let sql =
        "SELECT 'it''s', \"o'clock\" -- don't\n, {{LLMQA('a')}} /* ' */, [it's], {{LLMQA('b')}}";
    assert_eq!(format_calls(sql), ["LLMQA \"a\"", "LLMQA \"b\""]);
}

#[test]
fn spans_are_byte_ranges_of_the_text() {
    let sql = "SELECT 'ü', {{LLMMap('größe?', t.größe, (SELECT 1), options='t::ü')}}";
    let calls = scan_calls(sql).unwrap();
    assert_eq!(calls[0].span, 13..75);
    assert_eq!(calls[0].values, [Argument::Sql(34..43), Argument::Query(46..54)]);
    let options = Choices::Column { table: Some("t".into()), column: "ü".into(), span: 65..72 };
    assert_eq!(calls[0].options, Some(options));
    assert_eq!(sql.len(), calls[0].span.end);
}

#[test]
fn a_call_of_a_megabyte_is_masked() {
    let sql = format!("SELECT {{{{LLMMap('{}', c)}}}} FROM t", "x".repeat(1_000_000));
    let masked = mask_calls(&sql, &scan_calls(&sql).unwrap());
    assert_eq!(masked.len(), sql.len());
    assert!(masked.starts_with("SELECT _hq0___") && masked.ends_with("___ FROM t"));
}

#[test]
fn masking_keeps_every_position() {
    let cases = [
        ("SELECT {{LLMQA('q')}}", "SELECT _hq0__________"),
        (
            "SELECT {{LLMQA('q')}} + {{LLMQA('ü\n?')}} -- {{",
            "SELECT _hq0__________ + _hq1_____________ -- {{",
        ),
        ("SELECT * FROM (VALUES {{LLMQA('q')}})", "SELECT * FROM (VALUES (_hq0________))"),
        (
            "values /* , */ {{LLMQA('q')}}, (1, 2), {{LLMQA('q')}}",
            "values /* , */ (_hq0________), (1, 2), (_hq1________)",
        ),
        ("VALUES ({{LLMQA('q')}}, {{LLMQA('q')}})", "VALUES (_hq0__________, _hq1__________)"),
        ("f((VALUES (1)), {{LLMQA('q')}})", "f((VALUES (1)), _hq0__________)"),
        ("SELECT \"values\" {{LLMQA('q')}}", "SELECT \"values\" _hq0__________"),
    ];
    for (sql, expected) in cases {
        let calls = scan_calls(sql).unwrap();
        assert_eq!(mask_calls(sql, &calls), expected);
    }
    // The shortest possible span, and a call that belongs to another text.
    let mut calls = scan_calls("{{LLMQA('q')}}").unwrap();
    calls[0].span = 0..7;
    assert_eq!(mask_calls("{{f()}} x", &calls), "_hq0___ x");
    calls[0].is_values_row = true;
    assert_eq!(mask_calls("{{f()}} x", &calls), "(_hq0_) x");
    calls[0].span = 4..40;
    assert_eq!(mask_calls("{{f()}} x", &calls), "{{f()}} x");
    calls[0].span = 1..9;
    assert_eq!(mask_calls("aüü ü", &calls), "aüü ü");
}

#[test]
fn nested_calls_can_be_masked_in_place() {
    let sql = "{{LLMQA('q', (SELECT {{LLMMap('r', c)}} FROM t))}}";
    let outer = &scan_calls(sql).unwrap()[0];
    let Argument::Query(span) = &outer.values[0] else { panic!("{outer:?}") };
    assert_eq!(&mask_calls(sql, &outer.inner)[span.clone()], "SELECT _hq0______________ FROM t");
}

#[test]
fn errors_have_a_position() {
    let all = "the ingredients are `LLMMap`, `LLMQA`, `LLMValidate`, `LLMJoin` and `LLMReduce`";
    let list = "options are a list ('a', 'b'), a column t.c, a query (SELECT …), or for each row search(…)";
    let literals = "list texts, numbers, True, False or NULL; options are a list ('a', 'b'), a column t.c, a query (SELECT …), or for each row search(…)";
    let types = "the types are str, int, float, bool, date, and lists such as list[str]";
    let forms = "write '{2}', '{1,3}', '{1,}', '+', '*' or '?'";
    // Query, message, text under the caret, label and help.
    let cases = [
        ("SELECT {{}}", "a call is empty", "{{}}", "expected an ingredient", all),
        ("SELECT {{ -- x\n }}", "a call is empty", "{{ -- x\n }}", "expected an ingredient", all),
        ("SELECT {{'x'}}", "a call names no ingredient", "'x'", "expected a name", all),
        ("SELECT {{{x}}}", "a call names no ingredient", "{", "expected a name", all),
        (
            "SELECT {{LLMap('q', c)}}",
            "there is no ingredient `LLMap`",
            "LLMap",
            "not an ingredient",
            "did you mean `LLMMap`?",
        ),
        (
            "SELECT {{llmqq('q', c)}}",
            "there is no ingredient `llmqq`",
            "llmqq",
            "not an ingredient",
            "did you mean `LLMQA`?",
        ),
        (
            "SELECT {{ingredient()}}",
            "there is no ingredient `ingredient`",
            "ingredient",
            "not an ingredient",
            all,
        ),
        ("SELECT {{LLMQA}}", "`LLMQA` has no arguments", "}}", "expected `(`", ""),
        (
            "SELECT {{LLMQA()}}",
            "`LLMQA` has no question",
            "()",
            "expected a question, as a text, as the first argument",
            "",
        ),
        (
            "SELECT {{LLMQA('  ')}}",
            "`LLMQA` has no question",
            "('  ')",
            "expected a question, as a text, as the first argument",
            "",
        ),
        (
            "SELECT {{LLMQA(options='t::c')}}",
            "`LLMQA` has no question",
            "(options='t::c')",
            "expected a question, as a text, as the first argument",
            "",
        ),
        (
            "SELECT {{LLMMap(None, c)}}",
            "`LLMMap` has no question",
            "(None, c)",
            "expected a question, as a text, as the first argument",
            "",
        ),
        (
            "SELECT {{LLMMap(c, 'q')}}",
            "the question of `LLMMap` is not a text",
            "c",
            "expected '…'",
            "write the question as a text in single quotes: '…'",
        ),
        (
            "SELECT {{LLMQA('q' || c, d)}}",
            "the question is an expression",
            "'q' || c",
            "expected one text",
            "write the whole question as one text; {} in it stands for a value",
        ),
        (
            "SELECT {{LLMMap(?, c)}}",
            "the question of `LLMMap` is not a text",
            "?",
            "write the value into the query",
            "write it into the query as a text: '…'",
        ),
        (
            "SELECT {{LLMMap('q', c, question='r')}}",
            "the call has two questions",
            "'q'",
            "a second text where a value is expected",
            "write the question first, then the value",
        ),
        (
            "SELECT {{LLMMap('one' 'two', c)}}",
            "two texts follow each other",
            "'two'",
            "expected a comma before this text",
            "write a question of several lines as one text",
        ),
        (
            "SELECT {{LLMMap('it''s old?')}}",
            "`LLMMap` has no value to ask about",
            ")",
            "expected a column or an expression before this",
            "write {{LLMMap('it''s old?', t.column)}}",
        ),
        (
            "SELECT {{LLMMap('Is it''s ' || c || ' in {}?')}}",
            "`LLMMap` has no value to ask about",
            ")",
            "expected a column or an expression before this",
            "write {{LLMMap('Is it''s ' || … || ' in {}?', t.column)}}",
        ),
        ("SELECT {{LLMMap('q', ())}}", "`()` is empty", "()", "expected a value", ""),
        (
            "SELECT {{LLMMap('q',, c)}}",
            "an argument is missing",
            ",",
            "expected an argument before this comma",
            "",
        ),
        (
            "SELECT {{LLMMap(, c)}}",
            "an argument is missing",
            ",",
            "expected an argument before this comma",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, options=)}}",
            "`options` has no value",
            "options=",
            "expected a value after `=`",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, opions=('a'))}}",
            "`LLMMap` has no argument `opions`",
            "opions",
            "not an argument",
            "did you mean `options`?",
        ),
        (
            "SELECT {{LLMMap('q', rating = 1)}}",
            "`LLMMap` has no argument `rating`",
            "rating",
            "not an argument",
            "a comparison as a value needs parentheses: (rating = …)",
        ),
        (
            "SELECT {{LLMMap('q', c, left_on=d)}}",
            "`LLMMap` has no argument `left_on`",
            "left_on",
            "not an argument",
            "",
        ),
        (
            "SELECT {{LLMJoin(a, b, options=('x'))}}",
            "`LLMJoin` has no argument `options`",
            "options",
            "not an argument",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, regex='a', pattern='b')}}",
            "`pattern` appears twice",
            "pattern='b'",
            "second time",
            "remove one of the two",
        ),
        (
            "SELECT {{LLMQA('q', SELECT a, b FROM t)}}",
            "a query as an argument needs parentheses",
            "SELECT a",
            "expected `(` before",
            "write (SELECT …)",
        ),
        (
            "SELECT {{LLMQA('q', options=SELECT a)}}",
            "a query as an argument needs parentheses",
            "SELECT a",
            "expected `(` before",
            "write (SELECT …)",
        ),
        (
            "SELECT {{LLMQA('q', options=())}}",
            "the list of options is empty",
            "()",
            "expected a literal",
            literals,
        ),
        (
            "SELECT {{LLMQA('q', options=[])}}",
            "the list of options is empty",
            "[]",
            "expected a literal",
            literals,
        ),
        (
            "SELECT {{LLMQA('q', options=('a', b))}}",
            "an option is not a literal",
            "b",
            "expected a literal",
            literals,
        ),
        (
            "SELECT {{LLMQA('q', options=('a' 'b'))}}",
            "an option is not a literal",
            "'a' 'b'",
            "expected a literal",
            literals,
        ),
        (
            "SELECT {{LLMQA('q', options=('a',,'b'))}}",
            "an option is missing",
            "('a',,'b')",
            "expected a literal",
            literals,
        ),
        (
            "SELECT {{LLMQA('q', options=?)}}",
            "options cannot be a parameter",
            "?",
            "expected the options",
            list,
        ),
        (
            "SELECT {{LLMQA('q', options={{LLMQA('r')}})}}",
            "hqdl cannot parse the options",
            "{{LLMQA('r')}}",
            "not a list, column or query",
            list,
        ),
        (
            "SELECT {{LLMQA('q', options=a || b)}}",
            "hqdl cannot parse the options",
            "a || b",
            "not a list, column or query",
            list,
        ),
        (
            "SELECT {{LLMMap('q', c, return_type=?)}}",
            "the return type cannot be a parameter",
            "?",
            "write the value into the query",
            types,
        ),
        (
            "SELECT {{LLMMap('q', c, return_type='dict')}}",
            "`dict` is not a return type",
            "'dict'",
            "not a type",
            types,
        ),
        (
            "SELECT {{LLMMap('q', c, return_type='list[int')}}",
            "`list[int` is not a return type",
            "'list[int'",
            "not a type",
            types,
        ),
        (
            "SELECT {{LLMMap('q', c, quantifier='{}')}}",
            "hqdl cannot parse the quantifier",
            "'{}'",
            "not a quantifier",
            forms,
        ),
        (
            "SELECT {{LLMMap('q', c, quantifier=3)}}",
            "hqdl cannot parse the quantifier",
            "3",
            "not a quantifier",
            forms,
        ),
        (
            "SELECT {{LLMMap('q', c, quantifier='{99999999999}')}}",
            "hqdl cannot parse the quantifier",
            "'{99999999999}'",
            "not a quantifier",
            forms,
        ),
        (
            "SELECT {{LLMMap('q', c, quantifier='{3,2}')}}",
            "the minimum of the quantifier is greater than its maximum",
            "'{3,2}'",
            "no number of answers fits",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, regex=abc)}}",
            "the regex is not a text",
            "abc",
            "expected '…'",
            "write the regex as a text in single quotes: '…'",
        ),
        (
            "SELECT {{LLMJoin(a)}}",
            "`LLMJoin` needs two columns",
            "(a)",
            "expected the left and the right column",
            "write {{LLMJoin(t.a, u.b)}}",
        ),
        (
            "SELECT {{LLMJoin(a, b, c)}}",
            "`LLMJoin` joins two columns",
            "c",
            "one column too many",
            "describe which values belong together with join_criteria='…'",
        ),
        (
            "SELECT {{LLMQA('q') x}}",
            "unexpected text between `)` and `}}` of `LLMQA`",
            "x",
            "expected `}}`",
            "write what you do with the answer after `}}`",
        ),
        (
            "SELECT {{LLMQA('q'))}}",
            "unexpected text between `)` and `}}` of `LLMQA`",
            ")",
            "expected `}}`",
            "write what you do with the answer after `}}`",
        ),
        (
            "SELECT {{LLMQA('q') AND {{LLMQA('r')}}",
            "unexpected text between `)` and `}}` of `LLMQA`",
            "AND",
            "expected `}}`",
            "write what you do with the answer after `}}`",
        ),
        (
            "SELECT {{LLMQA('q'}}",
            "`(` is not closed before the end of the call",
            "('q'}}",
            "no `)` before `}}`",
            "",
        ),
        (
            "SELECT {{LLMMap('q', f(c)}}",
            "`(` is not closed before the end of the call",
            "('q', f(c)}}",
            "no `)` before `}}`",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, options=['a')}}",
            "`)` closes nothing",
            ")",
            "a `[` is open here",
            "",
        ),
        (
            "SELECT {{LLMMap('q', c, options=['a'}}",
            "`[` is not closed before the end of the call",
            "['a'}}",
            "no `]` before `}}`",
            "",
        ),
        ("SELECT {{LLMMap('q', c])}}", "`]` closes nothing", "]", "nothing is open here", ""),
        ("SELECT {{LLMQA('q')", "a call is never closed", "{{", "this call has no `}}`", ""),
        ("SELECT {{LLMQA('q') -- }}", "a call is never closed", "{{", "this call has no `}}`", ""),
        ("SELECT {{", "a call is never closed", "{{", "this call has no `}}`", ""),
        ("SELECT 1 }} + 2", "this `}}` ends no call", "}}", "no `{{` before it", ""),
        (
            "SELECT {{LLMQA('q)}}",
            "a quoted text is never closed",
            "'",
            "this `'` has no closing `'`",
            "write a `'` inside a quoted text twice",
        ),
        (
            "SELECT \"a FROM t",
            "a quoted name is never closed",
            "\"",
            "this `\"` has no closing `\"`",
            "write a `\"` inside a quoted name twice",
        ),
        (
            "SELECT [a FROM t",
            "a quoted name is never closed",
            "[",
            "this `[` has no closing `]`",
            "",
        ),
        (
            "SELECT {{LLMQA('q', (SELECT {{LLMap('r', c)}}))}}",
            "there is no ingredient `LLMap`",
            "LLMap",
            "not an ingredient",
            "did you mean `LLMMap`?",
        ),
    ];
    for (sql, message, span, label, help) in cases {
        let help = Some(help).filter(|h| !h.is_empty()).map(str::to_owned);
        assert_eq!(scan_error(sql), (message.into(), span.into(), label.into(), help), "{sql}");
    }
}

#[test]
fn nesting_depth_of_calls_is_limited() {
    let nested =
        |depth: usize| format!("SELECT {}c{}", "{{LLMMap('q', ".repeat(depth), ")}}".repeat(depth));
    let mut calls = &scan_calls(&nested(64)).unwrap();
    let mut depth = 0;
    while let Some(call) = calls.first() {
        (calls, depth) = (&call.inner, depth + 1);
    }
    assert_eq!(depth, 64);
    let error = scan_calls(&nested(65)).unwrap_err();
    assert_eq!(error.message, "calls are nested more than 64 levels deep");
    assert_eq!(error.span.start, 7 + 64 * 14);
    assert!(scan_calls(&nested(100_000)).is_err());
    // Parentheses cause no recursion.
    let deep = format!("{{{{LLMMap('q', {}c{})}}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert_eq!(scan_calls(&deep).unwrap()[0].values, [Argument::Sql(14..200_015)]);
}

#[test]
fn long_queries_are_parsed() {
    let started = std::time::Instant::now();
    let many =
        "{{LLMMap('Old?', t.age || ' years', options=('a', 'b'))}} = TRUE AND ".repeat(20_000);
    assert_eq!(scan_calls(&many).unwrap().len(), 20_000);
    let items = "'x', ".repeat(200_000);
    assert!(scan_calls(&format!("{{{{LLMQA('q', options=({items}))}}}}")).is_ok());
    // A name that resembles no other is not compared with each of them.
    assert!(scan_calls(&format!("{{{{{}()}}}}", "x".repeat(1_000_000))).is_err());
    assert!(scan_calls(&format!("{{{{LLMQA('q', {}=1)}}}}", "x".repeat(1_000_000))).is_err());
    assert!(scan_calls(&"'".repeat(1_000_001)).is_err());
    assert!(scan_calls(&"(".repeat(1_000_000)).is_ok());
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn carets_mark_the_span() {
    let sql =
        "SELECT name\nFROM t\nWHERE {{LLMMap('Is it größer?', t.c, return_typ='bool')}} = TRUE";
    let expected = "\
error: `LLMMap` has no argument `return_typ`
  |
3 | WHERE {{LLMMap('Is it größer?', t.c, return_typ='bool')}} = TRUE
  |                                      ^^^^^^^^^^ not an argument
  |
  = help: did you mean `return_type`?";
    assert_eq!(scan_calls(sql).unwrap_err().render(sql, false), expected);
    assert!(scan_calls(sql).unwrap_err().render(sql, true).contains("\u{1b}["));

    // If a span covers several lines, only the first is marked.
    let sql = "SELECT {{\n  LLMQA(\n    options='t::c'\n  )\n}}";
    let expected = "\
error: `LLMQA` has no question
  |
2 |   LLMQA(
  |        ^ expected a question, as a text, as the first argument";
    assert_eq!(scan_calls(sql).unwrap_err().render(sql, false), expected);

    // An error that belongs to another text is rendered without a panic.
    let error = SqlError {
        message: "m".into(),
        span: 2..99,
        label: "l".into(),
        help: None,
        is_suggestion: false,
    };
    assert!(error.render("ü", false).contains("error: m"));
    assert!(error.render("", false).contains("error: m"));
}

/// Asserts properties that hold for every text, whether it can be parsed or not.
fn assert_scan_invariants(sql: &str) {
    let calls = match scan_calls(sql) {
        Ok(calls) => calls,
        Err(error) => {
            assert!(sql.get(error.span.clone()).is_some_and(|s| !s.is_empty()), "{error:?}");
            assert!(error.render(sql, false).starts_with("error: "));
            return;
        }
    };
    let masked = mask_calls(sql, &calls);
    assert_eq!(masked.len(), sql.len());
    assert_eq!(scan_calls(&masked), Ok(vec![]), "{masked}");
    let mut at = 0;
    for (number, call) in calls.iter().enumerate() {
        assert_eq!(sql[at..call.span.start], masked[at..call.span.start]);
        assert_eq!(masked[call.span.clone()], call.placeholder(number));
        at = call.span.end;
        assert_valid_spans(sql, call);
    }
}

/// Asserts that byte ranges are inside their call, trimmed, and at char boundaries.
fn assert_valid_spans(sql: &str, call: &Call) {
    let text = &sql[call.span.clone()];
    assert!(text.starts_with("{{") && text.ends_with("}}"));
    let mut spans: Vec<_> = call
        .values
        .iter()
        .map(|value| match value {
            Argument::Column { span, .. } | Argument::Sql(span) | Argument::Query(span) => span,
        })
        .collect();
    spans.extend(call.options.iter().filter_map(|options| match options {
        Choices::Column { span, .. } | Choices::Query(span) | Choices::RowList(span) => Some(span),
        Choices::List(_) => None,
    }));
    for span in spans {
        assert!(call.span.start < span.start && span.end < call.span.end);
        let text = &sql[span.clone()];
        assert!(!text.is_empty() && text == text.trim_ascii());
    }
    for inner in &call.inner {
        assert!(call.span.start < inner.span.start && inner.span.end < call.span.end);
        assert_valid_spans(sql, inner);
    }
}

/// Generates fragments of queries in random order.
fn query_fragments() -> impl Strategy<Value = String> {
    let pieces = [
        "{{",
        "}}",
        "{",
        "}",
        "LLMMap",
        "LLMQA(",
        "LLMJoin(",
        "(",
        ")",
        "[",
        "]",
        "'",
        "\"",
        "`",
        "''",
        "--",
        "\n",
        "/*",
        "*/",
        ",",
        "=",
        "'q'",
        "'t::c'",
        "::",
        "t",
        ".",
        "options=",
        "return_type=",
        "'bool'",
        "context=",
        "quantifier='{2}'",
        "SELECT",
        "VALUES",
        "(SELECT 1)",
        "1e",
        "-",
        "?",
        ":x",
        "ü",
        "\u{a0}",
        "\0",
        "\r",
        "\t",
        " ",
        "{{LLMQA('q', ",
        "{{LLMMap('q', c)}}",
        "None",
        "few_shot=[",
        "few_shot={",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..40)
        .prop_map(|pieces| pieces.concat())
}

fn random_text() -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..60).prop_map(|chars| chars.into_iter().collect())
}

/// A generated call: its text, and its expected result of [`format_call`].
#[derive(Debug, Clone)]
struct Made {
    text: String,
    shown: String,
}

/// Generates whitespace and comments that contain misleading characters.
fn blank_strategy() -> impl Strategy<Value = &'static str> {
    let blanks = ["", " ", "\n\t", " -- it's }} , )\n", "/* ' }} , ) {{ */", " \r\n/**/ "];
    proptest::sample::select(blanks.to_vec())
}

/// Generates a text in single or double quotes.
fn quoted_strategy() -> impl Strategy<Value = (String, String)> {
    let chars =
        proptest::sample::select("aZ0 ?'\"`\\,;(){}[]-*/:\nü漢".chars().collect::<Vec<_>>());
    (proptest::collection::vec(chars, 0..12), any::<bool>()).prop_map(|(chars, double)| {
        let text: String = ['Q'].into_iter().chain(chars).collect();
        let quote = if double { "\"" } else { "'" };
        (format!("{quote}{}{quote}", text.replace(quote, &quote.repeat(2))), text)
    })
}

/// Generates a value: its text and its formatted form.
fn value_strategy() -> impl Strategy<Value = (String, String)> {
    let sql = [
        "c",
        "t.c",
        "\"a,b\".[c)]",
        "a || ' }} '",
        "f(a, ')')",
        "?",
        "-1.5e-3",
        "CASE WHEN a THEN b END",
    ];
    let query = [
        "SELECT 1",
        "select ')' from t -- '\n where a",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "VALUES (1)",
    ];
    let columns = ["'t::c'", "t::c", "(t::c)", "\"t::c\"", "('t::c')", "t :: `c`"];
    prop_oneof![
        proptest::sample::select(sql.to_vec()).prop_map(|s| (s.to_owned(), format!("sql <{s}>"))),
        (blank_strategy(), proptest::sample::select(query.to_vec()), blank_strategy())
            .prop_map(|(a, q, b)| (format!("({a}{q}{b})"), format!("query <{q}>"))),
        proptest::sample::select(columns.to_vec())
            .prop_map(|c| (c.to_owned(), format!("column c of t <{c}>"))),
    ]
}

/// Generates the value of `options=` and its formatted form.
fn choices_strategy() -> impl Strategy<Value = (String, String)> {
    let items = proptest::collection::vec(quoted_strategy(), 2..5);
    let lists = (items, blank_strategy(), any::<bool>()).prop_map(|(items, blank, tuple)| {
        let written: Vec<&str> = items.iter().map(|i| i.0.as_str()).collect();
        let values: Vec<Value> = items.iter().map(|i| Value::from(i.1.as_str())).collect();
        let written = written.join(&format!("{blank},{blank}"));
        let written = if tuple { format!("({written})") } else { format!("[{written}{blank},]") };
        (written, format!("options {}", format_list(&values)))
    });
    let others = [
        ("t.c", "options c of t <t.c>"),
        ("c", "options c of - <c>"),
        ("'t::c'", "options c of t <'t::c'>"),
        ("(SELECT ')')", "options query <SELECT ')'>"),
        ("(1, -2.5, True, NULL)", "options 1 -2.5 1 null"),
    ];
    let others = proptest::sample::select(others.to_vec());
    prop_oneof![lists, others.prop_map(|(text, shown)| (text.to_owned(), shown.to_owned()))]
}

/// Generates `return_type=` and the other settings, in the order in which they are formatted.
fn settings_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
    let kinds = [("'bool'", "boolean"), ("int", "integer"), ("\"List[str]\"", "list of text")];
    let counts = [("'{2}'", "2..2"), ("\"{1,}\"", "1.."), ("'?'", "0..1")];
    (
        proptest::option::of(choices_strategy()),
        proptest::option::of(proptest::sample::select(kinds.to_vec())),
        proptest::option::of(proptest::sample::select(counts.to_vec())),
        proptest::option::of(quoted_strategy()),
        proptest::option::of(any::<u32>()),
    )
        .prop_map(|(options, kind, count, regex, limit)| {
            let mut all = Vec::new();
            all.extend(options.map(|(text, shown)| (format!("options={text}"), shown)));
            all.extend(kind.map(|(text, shown)| (format!("return_type={text}"), shown.to_owned())));
            all.extend(count.map(|(text, shown)| (format!("quantifier={text}"), shown.to_owned())));
            all.extend(
                regex.map(|(text, shown)| (format!("regex={text}"), format!("regex {shown}"))),
            );
            all.extend(limit.map(|n| (format!("limit={n}"), "told limit".to_owned())));
            all
        })
}

fn call_strategy() -> impl Strategy<Value = Made> {
    let leaf =
        call_strategy_with(value_strategy().prop_map(|(text, shown)| (text, shown, None)).boxed());
    leaf.prop_recursive(3, 8, 2, |inner| {
        let nested = (inner, any::<bool>()).prop_map(|(made, query)| {
            let text = &made.text;
            let (written, shown) = if query {
                (format!("(SELECT {text})"), format!("query <SELECT {text}>"))
            } else {
                (format!("f({text})"), format!("sql <f({text})>"))
            };
            (written, shown, Some(made.shown))
        });
        call_strategy_with(nested.boxed())
    })
}

fn call_strategy_with(
    value: BoxedStrategy<(String, String, Option<String>)>,
) -> BoxedStrategy<Made> {
    let values = proptest::collection::vec(value, 1..3);
    (
        0..3_usize,
        quoted_strategy(),
        values,
        settings_strategy(),
        blank_strategy(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(kind, question, values, mut settings, blank, comma, named)| {
            let kind = ingredients::list_ingredients()[kind];
            // An ingredient with a fixed answer type accepts no other type.
            let other =
                |text: &str| text.starts_with("return_type=") && text != "return_type='bool'";
            settings.retain(|(text, _)| kind.fixed_return_type().is_none() || !other(text));
            let mut arguments: Vec<String> = values.iter().map(|v| v.0.clone()).collect();
            let question_text = if named { format!("question={}", question.0) } else { question.0 };
            // The comma after the question may be missing if the value allows it.
            let glued = !named && !comma && values[0].1.starts_with("column");
            if glued {
                arguments[0] = format!("{question_text}{blank} {}", arguments[0]);
            } else if named {
                arguments.push(question_text);
            } else {
                arguments.insert(0, question_text);
            }
            arguments.extend(settings.iter().map(|s| s.0.clone()));
            let arguments = arguments.join(&format!("{blank},{blank}"));
            let end = if comma { "," } else { "" };
            let text = format!(
                "{{{{{blank}{}{blank}({blank}{arguments}{blank}{end}{blank}){blank}}}}}",
                kind.name()
            );
            let mut shown = vec![format!("{} {:?}", kind.name(), question.1)];
            shown.extend(values.iter().map(|v| v.1.clone()));
            shown.extend(settings.into_iter().map(|s| s.1));
            shown.extend(values.into_iter().filter_map(|v| v.2).map(|inner| format!("[{inner}]")));
            Made { text, shown: shown.join("; ") }
        })
        .boxed()
}

proptest! {
    #[test]
    fn no_text_makes_the_scanner_panic(text in random_text(), query_fragments in query_fragments()) {
        assert_scan_invariants(&text);
        assert_scan_invariants(&query_fragments);
        assert_scan_invariants(&format!("{{{{LLMQA('q', {query_fragments})}}}}"));
        assert_scan_invariants(&format!("{{{{LLMQA('q', options={query_fragments})}}}}"));
    }

    #[test]
    fn generated_calls_are_parsed(
        calls in proptest::collection::vec(call_strategy(), 1..4),
        noise in proptest::sample::select(vec![" + ", " /* {{ ' */ AND ", " -- it's {{\n OR ", ", '{{''' || ", ", [{{], "]),
    ) {
        let texts: Vec<&str> = calls.iter().map(|c| c.text.as_str()).collect();
        let sql = format!("SELECT {} FROM t", texts.join(noise));
        let expected: Vec<&str> = calls.iter().map(|c| c.shown.as_str()).collect();
        prop_assert_eq!(format_calls(&sql), expected, "{}", sql);
        assert_scan_invariants(&sql);
    }

    #[test]
    fn generated_quantifiers_are_parsed(min in any::<u32>(), more in proptest::option::of(any::<u32>())) {
        let max = more.map(|m| min.saturating_add(m));
        let written = max.map_or(format!("{{{min},}}"), |max| format!("{{{min},{max}}}"));
        let sql = format!("{{{{LLMQA('q', quantifier='{written}')}}}}");
        prop_assert_eq!(scan_calls(&sql).unwrap()[0].quantifier, Some(Quantifier { min, max }));
    }
}
