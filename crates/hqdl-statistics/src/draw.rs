//! Draws random samples from the rows of a table.

/// A row of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnRow {
    /// Index of the row in the table.
    pub row: usize,
    /// Index of the stratum from which the row was drawn.
    pub stratum: usize,
}

/// Draws `sizes[h]` rows from each stratum `h` without replacement, and returns them in random
/// order. `strata` contains the stratum of each row in the table.
#[must_use]
pub fn draw_rows(strata: &[usize], sizes: &[usize], seed: u64) -> Vec<DrawnRow> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut drawn = Vec::new();
    for (stratum, size) in sizes.iter().enumerate() {
        let rows = (0..strata.len()).filter(|row| strata[*row] == stratum).collect::<Vec<_>>();
        let chosen = rng.choose_multiple(rows, *size);
        drawn.extend(chosen.into_iter().map(|row| DrawnRow { row, stratum }));
    }
    rng.shuffle(&mut drawn);
    drawn
}
