//! Parses view definitions.

use super::lexer::{self, Brackets};
use super::parse::parse_query;
use super::tree::ViewDefinition;

impl ViewDefinition {
    /// Parses a CREATE VIEW statement. Returns `None` if its query cannot be parsed.
    #[must_use]
    pub fn parse(create: &str) -> Option<Self> {
        let mut depth = 0_usize;
        // Find the first AS outside of parentheses; an unquoted name cannot be AS.
        for token in lexer::read_tokens(create, Brackets::Name) {
            if token.is_symbol(b'(') {
                depth += 1;
            } else if token.is_symbol(b')') {
                depth = depth.saturating_sub(1);
            } else if depth == 0 && token.is_word(create, "as") {
                let sql = create.get(token.end..)?.to_owned();
                let query = parse_query(&sql).ok()?.query;
                return Some(Self { sql, query });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::blendsql::tree::ViewDefinition;

    #[test]
    fn view_query_is_parsed_despite_unusual_names() {
        let tables = |create: &str| {
            let view = ViewDefinition::parse(create)?;
            let mut tables = Vec::new();
            view.query.visit_tables(&mut |name| tables.push(name.to_owned()));
            Some(tables.join(" "))
        };
        for create in [
            "CREATE VIEW selected AS SELECT a FROM t",
            "CREATE TEMP VIEW IF NOT EXISTS main.\"as select\" (\"as\", b) AS /* as */ SELECT a, b FROM t",
            "create view [as] as select 'as' as x from t",
        ] {
            assert_eq!(tables(create).as_deref(), Some("t"), "{create}");
        }
        let with = "CREATE VIEW v AS WITH c AS (SELECT 1 FROM t) SELECT * FROM c";
        assert_eq!(tables(with).as_deref(), Some("t c"));
        assert_eq!(tables("CREATE VIEW v AS SELEC"), None);
    }
}
