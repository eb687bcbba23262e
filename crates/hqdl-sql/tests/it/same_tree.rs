//! Our grammar against the one that is generated from `SQLite`'s.

use hqdl_sql::blendsql::parse::parse_query;
use hqdl_sql::blendsql::scan_calls;
use hqdl_sql::blendsql::spelling::NormalizedQuery;

use crate::oracle;

fn compare(sql: &str) -> Option<String> {
    let theirs = scan_calls(sql).and_then(|calls| oracle::parse_query(sql, calls));
    let ours = parse_query(sql);
    let strip = |text: String| {
        let spans = regex::Regex::new(r"(span|from_end|group_end|source_text): [^,]*,?|^ *\n").unwrap();
        spans.replace_all(&text, "").lines().filter(|l| !l.trim().is_empty()).collect::<Vec<_>>().join("\n")
    };
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            let (ours, theirs) =
                (strip(format!("{:#?}", ours.query)), strip(format!("{:#?}", theirs.query)));
            (ours != theirs).then(|| {
                let at = ours.lines().zip(theirs.lines()).position(|(a, b)| a != b);
                let at = at.unwrap_or(ours.lines().count().min(theirs.lines().count()));
                let cut = |t: &str| t.lines().skip(at.saturating_sub(3)).take(8).collect::<Vec<_>>().join("\n");
                format!("DIFF {sql}\nours:\n{}\ntheirs:\n{}", cut(&ours), cut(&theirs))
            })
        }
        (Err(a), Err(b)) => (a.message != b.message || a.span != b.span)
            .then(|| format!("MSG {sql}\n  ours {} {:?}\n  theirs {} {:?}", a.message, a.span, b.message, b.span)),
        (Ok(_), Err(b)) => Some(format!("WE ACCEPT {sql}\n  {} {:?}", b.message, b.span)),
        (Err(a), Ok(_)) => Some(format!("WE REJECT {sql}\n  {} {:?}", a.message, a.span)),
    }
}

#[test]
fn compare_files() {
    std::thread::Builder::new().stack_size(1 << 30).spawn(files).unwrap().join().unwrap();
}

fn files() {
    let list = std::env::var("HQ_COMPARE").unwrap_or_default();
    if list.is_empty() { return; }
    let (mut n, mut bad) = (0, 0);
    for sql in std::fs::read_to_string(list).unwrap().split('\0') {
        n += 1;
        let mut texts = vec![sql.to_owned()];
        if let Ok(s) = NormalizedQuery::normalize(sql) && s.text != sql { texts.push(s.text); }
        for t in texts {
            if let Some(d) = compare(&t) { bad += 1; println!("{d}\n-----"); }
        }
    }
    println!("{n} compared, {bad} differ");
}
