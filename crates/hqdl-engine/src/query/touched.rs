//! Counts the rows and entities for which a pass reached a call.

/// Number of rows that reached a call, and of distinct entities among them.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// Number of rows.
    pub rows: u64,
    /// Number of distinct entities.
    pub values: u64,
    seen: Vec<bool>,
}

impl Touched {
    /// Counts a row and its entity.
    pub(super) fn note(&mut self, entity: usize) {
        self.rows += 1;
        if self.seen.len() <= entity {
            self.seen.resize((entity + 1).next_power_of_two(), false);
        }
        self.values += u64::from(!std::mem::replace(&mut self.seen[entity], true));
    }
}
