//! Rows and entities that a pass reached.

/// How often a call was reached, and for how many different entities.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// Rows.
    pub rows: u64,
    /// Different entities.
    pub values: u64,
    seen: Vec<bool>,
}

impl Touched {
    /// Notes a row, and whose it is.
    pub(super) fn note(&mut self, entity: usize) {
        self.rows += 1;
        if self.seen.len() <= entity {
            self.seen.resize((entity + 1).next_power_of_two(), false);
        }
        self.values += u64::from(!std::mem::replace(&mut self.seen[entity], true));
    }
}
