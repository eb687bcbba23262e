//! Counts the rows and entities for which a pass reaches a call.

/// Number of rows that reached a call, and number of distinct entities among them.
#[derive(Debug, Clone, Default)]
pub struct CallStats {
    /// Number of rows.
    pub row_count: u64,
    /// Number of distinct entities.
    pub distinct_count: u64,
    seen: Vec<bool>,
}

impl CallStats {
    pub(in crate::query) fn count_row(&mut self, entity: usize) {
        self.row_count += 1;
        if self.seen.len() <= entity {
            self.seen.resize((entity + 1).next_power_of_two(), false);
        }
        self.distinct_count += u64::from(!std::mem::replace(&mut self.seen[entity], true));
    }
}
