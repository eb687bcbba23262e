//! Checks that the files of the rules contain no SQL text.

use std::path::Path;

use regex::Regex;

#[test]
fn rules_contain_no_sql_text() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/blendsql/rules");
    let literal = Regex::new(r#""(?:[^"\\]|\\.)*""#).unwrap();
    let sql =
        Regex::new(r"hq_|CASE WHEN|SELECT .* FROM|\) (AND|OR|IN) \(|IS (TRUE|FALSE)|LIMIT -1");
    let (sql, mut count) = (sql.unwrap(), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let at = format!("{}: {line}", path.display());
            assert!(!["emit", "quote_", "call_sql"].iter().any(|word| line.contains(word)), "{at}");
            for found in literal.find_iter(line) {
                assert!(!sql.is_match(found.as_str()), "{at}");
            }
        }
        count += 1;
    }
    assert!(count > 5, "{count}");
}
