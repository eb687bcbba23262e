//! Figures that SWAN's paper (2024) published: execution accuracy in percent, by number of shots.

/// A system's published figures for one database.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedFigures {
    /// System and model.
    pub system: &'static str,
    /// Number of shots, and execution accuracy in percent.
    pub ex: &'static [(usize, f64)],
}

/// Returns the published figures for a database; empty for an unknown name.
#[must_use]
pub fn list_published_figures(database: &str) -> Vec<PublishedFigures> {
    let of = |gpt35: &'static [(usize, f64)], gpt4: &'static [(usize, f64)], blendsql| {
        vec![
            PublishedFigures { system: "HQDL, GPT-3.5 Turbo (2024)", ex: gpt35 },
            PublishedFigures { system: "HQDL, GPT-4 Turbo (2024)", ex: gpt4 },
            PublishedFigures { system: "BlendSQL, GPT-3.5 Turbo (2024)", ex: blendsql },
        ]
    };
    match database {
        "california_schools" => of(
            &[(0, 50.0), (1, 50.0), (3, 46.7), (5, 53.3)],
            &[(0, 50.0), (1, 43.3), (3, 50.0), (5, 56.7)],
            &[(0, 10.0), (5, 13.3)],
        ),
        "superhero" => of(
            &[(0, 13.3), (1, 23.3), (3, 20.0), (5, 20.0)],
            &[(0, 23.3), (1, 23.3), (3, 26.7), (5, 23.3)],
            &[(0, 23.3), (5, 23.3)],
        ),
        "formula_1" => of(
            &[(0, 16.7), (1, 46.7), (3, 46.7), (5, 46.7)],
            &[(0, 36.7), (1, 50.0), (3, 50.0), (5, 50.0)],
            &[(0, 30.0), (5, 43.3)],
        ),
        "european_football_2" => of(
            &[(0, 16.7), (1, 26.7), (3, 33.3), (5, 33.3)],
            &[(0, 16.7), (1, 23.3), (3, 26.7), (5, 30.0)],
            &[(0, 10.0), (5, 3.3)],
        ),
        _ => Vec::new(),
    }
}

/// Data factuality over all four databases in percent, by SWAN's count.
pub const FACTUALITY: [PublishedFigures; 2] = [
    PublishedFigures {
        system: "HQDL, GPT-3.5 Turbo (2024)",
        ex: &[(0, 20.9), (1, 37.3), (3, 41.4), (5, 42.7)],
    },
    PublishedFigures {
        system: "HQDL, GPT-4 Turbo (2024)",
        ex: &[(0, 29.3), (1, 47.0), (3, 47.1), (5, 48.2)],
    },
];

/// Input tokens that HQDL's released code used for the superhero database, by number of shots.
pub const SUPERHERO_INPUT_TOKENS: [(usize, u64); 4] =
    [(0, 1_069_186), (1, 1_102_738), (3, 1_211_782), (5, 1_293_565)];
