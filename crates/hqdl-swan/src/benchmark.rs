//! Describes how SWAN changes each of its four databases: the hidden columns, the deleted rows, and
//! the true values of the generated columns.

use std::path::Path;

use hqdl_spec::UncheckedSpec;
use hqdl_values::problem::Problems;

/// One of SWAN's databases.
#[derive(Debug)]
pub struct Benchmark {
    /// Name of the database in BIRD.
    pub name: &'static str,
    /// Tables and columns that the prepared copy does not contain.
    pub hidden: &'static [HiddenColumns],
    /// Hidden columns that the copy keeps, because HQDL's published SQL reads them.
    pub read_by_hqdl: &'static [ReadColumn],
    /// SQL statements, in order, that delete the rows that SWAN drops.
    pub rules: &'static [&'static str],
    /// True values of the generated columns.
    pub truth: &'static [BenchmarkTruth],
    /// Whether SWAN's factuality count includes the cells of the key.
    pub counts_keys: bool,
    /// The rows that SWAN shows as examples.
    pub shots: &'static [BenchmarkShots],
    /// Text of the spec that expands the database.
    pub spec: &'static str,
}

/// Keys, as texts, of the rows that SWAN shows to the model as examples. With one shot, SWAN shows
/// the first row; with five shots, all of them.
#[derive(Debug)]
pub struct BenchmarkShots {
    /// Name of the expansion.
    pub expansion: &'static str,
    /// Position of the source that these rows belong to, if each source has its own examples.
    pub source: Option<usize>,
    /// Keys of the rows, in the order in which SWAN shows them.
    pub keys: &'static [&'static [&'static str]],
}

/// A hidden column that HQDL's published SQL reads.
#[derive(Debug)]
pub struct ReadColumn {
    /// Name of the question whose query reads the column.
    pub qid: &'static str,
    /// Name of the table.
    pub table: &'static str,
    /// Name of the column.
    pub column: &'static str,
}

impl ReadColumn {
    /// Returns a description such as `circuits.url (formula_1-06)`.
    #[must_use]
    pub fn to_label(&self) -> String {
        format!("{}.{} ({})", self.table, self.column, self.qid)
    }
}

/// Hidden columns of a table.
#[derive(Debug)]
pub struct HiddenColumns {
    /// Name of the table.
    pub table: &'static str,
    /// Hidden columns; an empty list hides the whole table.
    pub columns: &'static [&'static str],
}

/// True values of some columns of a published table.
#[derive(Debug)]
pub struct BenchmarkTruth {
    /// Expansion of the spec.
    pub expansion: &'static str,
    /// Position of the expansion's source that contains these keys.
    pub source: usize,
    /// Name of the published table.
    pub table: &'static str,
    /// Names of the key columns.
    pub key: &'static [&'static str],
    /// Names of the generated columns.
    pub columns: &'static [&'static str],
    /// The one-to-many column, if each value has its own row.
    pub many: Option<&'static str>,
    /// SELECT over the gold database that returns the key and then the columns.
    pub select: &'static str,
}

impl Benchmark {
    /// Parses the spec that expands the database.
    ///
    /// # Errors
    /// [`Problems`] if the text is not TOML.
    pub fn parse_spec(&self) -> Result<UncheckedSpec, Problems> {
        // The text is part of the program; the path is its name in messages and tables.
        let path = Path::new("specs/swan").join(format!("{}.toml", self.name));
        UncheckedSpec::parse(&path, self.spec.to_owned())
    }

    /// Returns the benchmark with this name.
    #[must_use]
    pub fn find_by_name(name: &str) -> Option<&'static Self> {
        ALL.iter().copied().find(|b| b.name == name)
    }
}

/// Returns the name of a database: its file name, up to the first dot.
#[must_use]
pub fn database_name(database: &Path) -> String {
    let file = database.file_name().unwrap_or_default().to_string_lossy().into_owned();
    file.split('.').next().unwrap_or_default().to_owned()
}

/// SWAN's four databases.
pub const ALL: [&Benchmark; 4] =
    [&CALIFORNIA_SCHOOLS, &SUPERHERO, &FORMULA_1, &EUROPEAN_FOOTBALL_2];

const SUPERHERO: Benchmark = Benchmark {
    name: "superhero",
    // SWAN's fifth example combines the key of Lucifer Morningstar with the answer for Abin Sur.
    shots: &[BenchmarkShots {
        expansion: "llm",
        source: None,
        keys: &[
            &["3-D Man", "Charles Chandler"],
            &["Lucifer Morningstar", "-"],
            &["Abe Sapien", "Abraham Sapien"],
            &["Abomination", "Emil Blonsky"],
            &["Abin Sur", "-"],
        ],
    }],
    spec: include_str!("../specs/superhero.toml"),
    counts_keys: true,
    read_by_hqdl: &[],
    hidden: &[
        HiddenColumns { table: "alignment", columns: &[] },
        HiddenColumns { table: "hero_power", columns: &[] },
        HiddenColumns {
            table: "superhero",
            columns: &[
                "gender_id",
                "eye_colour_id",
                "hair_colour_id",
                "skin_colour_id",
                "race_id",
                "publisher_id",
                "alignment_id",
            ],
        },
    ],
    rules: &[
        "DELETE FROM superhero WHERE race_id IS NULL OR publisher_id IS NULL OR alignment_id IS NULL
         OR gender_id IN (SELECT id FROM gender WHERE gender = 'N/A')",
        // Delete all heroes that share a key.
        "DELETE FROM superhero WHERE id IN (SELECT a.id FROM superhero AS a JOIN superhero AS b
         ON a.id <> b.id AND a.superhero_name IS b.superhero_name AND a.full_name IS b.full_name)",
        "DELETE FROM hero_power WHERE hero_id NOT IN (SELECT id FROM superhero)",
        "DELETE FROM hero_attribute WHERE hero_id NOT IN (SELECT id FROM superhero)",
    ],
    truth: &[
        BenchmarkTruth {
            expansion: "llm",
            source: 0,
            table: "llm",
            key: &["superhero_name", "full_name"],
            columns: &[
                "eye_color",
                "hair_color",
                "skin_color",
                "publisher_name",
                "race",
                "gender",
                "moral_alignment",
            ],
            many: None,
            select: "SELECT s.superhero_name, s.full_name, e.colour, h.colour, k.colour,
                            p.publisher_name, r.race, g.gender, a.alignment
                     FROM superhero AS s
                     LEFT JOIN colour AS e ON e.id = s.eye_colour_id
                     LEFT JOIN colour AS h ON h.id = s.hair_colour_id
                     LEFT JOIN colour AS k ON k.id = s.skin_colour_id
                     LEFT JOIN publisher AS p ON p.id = s.publisher_id
                     LEFT JOIN race AS r ON r.id = s.race_id
                     LEFT JOIN gender AS g ON g.id = s.gender_id
                     LEFT JOIN alignment AS a ON a.id = s.alignment_id
                     ORDER BY s.id",
        },
        BenchmarkTruth {
            expansion: "llm",
            source: 0,
            table: "llm_hero_2_power",
            key: &["superhero_name", "full_name"],
            columns: &["power_name"],
            many: Some("powers"),
            select: "SELECT s.superhero_name, s.full_name, w.power_name
                     FROM superhero AS s
                     LEFT JOIN hero_power AS hp ON hp.hero_id = s.id
                     LEFT JOIN superpower AS w ON w.id = hp.power_id
                     ORDER BY s.id, w.id",
        },
    ],
};

const FORMULA_1: Benchmark = Benchmark {
    name: "formula_1",
    shots: &[
        BenchmarkShots {
            expansion: "llm_circuits",
            source: None,
            keys: &[
                &["Kuala Lumpur", "Sepang International Circuit"],
                &["Sakhir", "Bahrain International Circuit"],
                &["Montmeló", "Circuit de Barcelona-Catalunya"],
                &["Istanbul", "Istanbul Park"],
                &["Monte-Carlo", "Circuit de Monaco"],
            ],
        },
        // Both sources share one prompt. SWAN shows BMW Sauber only with five shots.
        BenchmarkShots {
            expansion: "llm_people",
            source: None,
            keys: &[
                &["AFM"],
                &["LewisHamilton"],
                &["NickHeidfeld"],
                &["BMW Sauber"],
                &["NicoRosberg"],
            ],
        },
        BenchmarkShots {
            expansion: "llm_races",
            source: None,
            keys: &[
                &["Australian Grand Prix", "2009"],
                &["Bahrain Grand Prix", "2008"],
                &["Malaysian Grand Prix", "2007"],
                &["Bahrain Grand Prix", "2009"],
                &["Spanish Grand Prix", "2009"],
            ],
        },
    ],
    spec: include_str!("../specs/formula_1.toml"),
    counts_keys: false,
    read_by_hqdl: &[
        ReadColumn { qid: "formula_1-06", table: "circuits", column: "url" },
        ReadColumn { qid: "formula_1-28", table: "races", column: "date" },
    ],
    hidden: &[
        HiddenColumns { table: "circuits", columns: &["country", "url", "lat", "lng"] },
        HiddenColumns { table: "constructors", columns: &["nationality", "url"] },
        HiddenColumns { table: "drivers", columns: &["nationality", "dob", "url", "code"] },
        HiddenColumns { table: "races", columns: &["date", "url"] },
    ],
    rules: &[],
    truth: &[
        BenchmarkTruth {
            expansion: "llm_circuits",
            source: 0,
            table: "llm_circuits",
            key: &["location", "name"],
            columns: &["country", "url", "lat", "lng"],
            many: None,
            select: "SELECT location, name, country, url, lat, lng FROM circuits ORDER BY rowid",
        },
        BenchmarkTruth {
            expansion: "llm_people",
            source: 0,
            table: "llm_people",
            key: &["name"],
            columns: &["dob", "driver_code", "nationality", "person_url"],
            many: None,
            select: "SELECT forename || surname, dob, code, nationality, url
                     FROM drivers ORDER BY rowid",
        },
        // SWAN counts only these two columns for a constructor; the others are NULL.
        BenchmarkTruth {
            expansion: "llm_people",
            source: 1,
            table: "llm_people",
            key: &["name"],
            columns: &["nationality", "person_url"],
            many: None,
            select: "SELECT name, nationality, url FROM constructors ORDER BY rowid",
        },
        BenchmarkTruth {
            expansion: "llm_races",
            source: 0,
            table: "llm_races",
            key: &["name", "year"],
            columns: &["date", "season_url"],
            many: None,
            select: "SELECT r.name, r.year, r.date, s.url
                     FROM races AS r LEFT JOIN seasons AS s ON s.year = r.year ORDER BY r.rowid",
        },
    ],
};

const CALIFORNIA_SCHOOLS: Benchmark = Benchmark {
    name: "california_schools",
    shots: &[
        BenchmarkShots {
            expansion: "llm",
            source: Some(0),
            keys: &[
                &["FAME Public Charter", "Alameda County Office of Education"],
                &[
                    "Charter Community School Home Study Academy",
                    "El Dorado County Office of Education",
                ],
                &["Alameda County Juvenile Hall/Court", "Alameda County Office of Education"],
                &["Yu Ming Charter", "Alameda County Office of Education"],
                &[
                    "California School for the Deaf-Fremont",
                    "California School for the Deaf-Fremont (State Special Schl)",
                ],
            ],
        },
        BenchmarkShots {
            expansion: "llm",
            source: Some(1),
            keys: &[
                &["1515 Webster Street", "Envision Academy for Arts & Technology"],
                &["2125 Jefferson Avenue", "Aspire California College Preparatory Academy"],
                &["39500 Dunlap Road", "Dunlap Leadership Academy"],
                &["5328 Brann Street", "Urban Montessori Charter"],
                &["755 Oak Grove Road", "Ygnacio Valley High"],
            ],
        },
    ],
    spec: include_str!("../specs/california_schools.toml"),
    counts_keys: false,
    read_by_hqdl: &[
        ReadColumn { qid: "california_schools-08", table: "frpm", column: "County Name" },
        ReadColumn { qid: "california_schools-14", table: "schools", column: "City" },
    ],
    hidden: &[
        HiddenColumns {
            table: "frpm",
            columns: &[
                "County Name",
                "County Code",
                "Educational Option Type",
                "Charter School (Y/N)",
                "Charter School Number",
                "Charter Funding Type",
            ],
        },
        HiddenColumns { table: "satscores", columns: &["cname"] },
        HiddenColumns { table: "schools", columns: &["County", "City", "MailCity", "Magnet", "Website"] },
    ],
    rules: &[
        // Keep the schools that are in both tables, have a name and a website, and whose funding
        // type does not differ between the tables. Of the schools with the same key, keep only the
        // one with the lowest code, both among those with a website and in frpm.
        "CREATE TEMP TABLE kept AS SELECT f.CDSCode FROM frpm AS f JOIN schools AS s USING (CDSCode)
         WHERE s.School IS NOT NULL AND s.Website IS NOT NULL
           AND f.\"Charter Funding Type\" <> s.FundingType IS NOT TRUE
           AND f.CDSCode IN (SELECT min(CDSCode) FROM schools WHERE Website IS NOT NULL GROUP BY Street, School)
           AND f.CDSCode IN (SELECT min(CDSCode) FROM frpm GROUP BY \"School Name\", \"District Name\")",
        "DELETE FROM frpm WHERE CDSCode NOT IN (SELECT CDSCode FROM temp.kept)",
        "DELETE FROM schools WHERE CDSCode NOT IN (SELECT CDSCode FROM temp.kept)",
        // SWAN keeps all rows of satscores, but removes the leading zero of their codes.
        "UPDATE satscores SET cds = ltrim(cds, '0')",
    ],
    truth: &[
        BenchmarkTruth {
            expansion: "llm",
            source: 0,
            table: "llm",
            key: &["School Name", "District Name"],
            columns: &["Educational Option Type", "Charter School (Y/N)", "Charter Funding Type"],
            many: None,
            select: "SELECT \"School Name\", \"District Name\", \"Educational Option Type\",
                            \"Charter School (Y/N)\", \"Charter Funding Type\"
                     FROM frpm ORDER BY rowid",
        },
        BenchmarkTruth {
            expansion: "llm",
            source: 1,
            table: "llm",
            key: &["Street", "School"],
            columns: &["City", "County", "Magnet", "Website", "ExclusivelyVirtual"],
            many: None,
            select: "SELECT Street, School, City, County, Magnet, Website,
                            CASE WHEN Virtual = 'F' THEN 'Y' WHEN Virtual IS NOT NULL THEN 'N' END
                     FROM schools ORDER BY rowid",
        },
    ],
};

const EUROPEAN_FOOTBALL_2: Benchmark = Benchmark {
    name: "european_football_2",
    shots: &[
        BenchmarkShots {
            expansion: "llm_match",
            source: None,
            keys: &[
                &["KRC Genk", "Beerschot AC", "2008-08-17 00:00:00"],
                &["SV Zulte-Waregem", "Sporting Lokeren", "2008-08-16 00:00:00"],
                &["KSV Cercle Brugge", "RSC Anderlecht", "2008-08-16 00:00:00"],
                &["FCV Dender EH", "Standard de Liège", "2008-08-16 00:00:00"],
                &["Manchester United", "Newcastle United", "2008-08-17 00:00:00"],
            ],
        },
        BenchmarkShots {
            expansion: "llm_team",
            source: None,
            keys: &[
                &["KRC Genk"],
                &["Beerschot AC"],
                &["SV Zulte-Waregem"],
                &["Sporting Lokeren"],
                &["KSV Cercle Brugge"],
            ],
        },
        BenchmarkShots {
            expansion: "llm_player",
            source: None,
            keys: &[
                &["Aaron Appindangoye", "187"],
                &["Aaron Doran", "163"],
                &["Aaron Galindo", "198"],
                &["Aaron Hughes", "154"],
                &["Aaron Hunt", "161"],
            ],
        },
    ],
    spec: include_str!("../specs/european_football_2.toml"),
    counts_keys: false,
    read_by_hqdl: &[ReadColumn {
        qid: "european_football_2-20",
        table: "Player",
        column: "height",
    }],
    hidden: &[
        HiddenColumns { table: "League", columns: &["country_id", "name"] },
        HiddenColumns { table: "Country", columns: &["name"] },
        HiddenColumns {
            table: "Match",
            columns: &["league_id", "country_id", "home_team_goal", "away_team_goal", "goal"],
        },
        HiddenColumns { table: "Team", columns: &["team_short_name"] },
        HiddenColumns { table: "Player", columns: &["birthday", "height"] },
        HiddenColumns { table: "Player_Attributes", columns: &["preferred_foot"] },
    ],
    rules: &[
        // Delete all players of the same name if one of them does not have exactly one preferred
        // foot (NULL counts as one), or if two of them share the key.
        "DELETE FROM Player WHERE player_name IN (
           SELECT p.player_name FROM Player AS p LEFT JOIN (
             SELECT player_api_id, count(DISTINCT coalesce('=' || preferred_foot, '')) AS feet
             FROM Player_Attributes GROUP BY player_api_id
           ) AS f ON f.player_api_id = p.player_api_id WHERE f.feet IS NOT 1
           UNION SELECT player_name FROM Player GROUP BY player_name, weight HAVING count(*) > 1)",
    ],
    truth: &[
        BenchmarkTruth {
            expansion: "llm_match",
            source: 0,
            table: "llm_match",
            key: &["home_team", "away_team", "date"],
            columns: &["league_name", "home_team_goal", "away_team_goal", "country_name"],
            many: None,
            select: "SELECT h.team_long_name, a.team_long_name, m.date,
                            l.name, m.home_team_goal, m.away_team_goal, c.name
                     FROM Match AS m
                     JOIN Team AS h ON h.team_api_id = m.home_team_api_id
                     JOIN Team AS a ON a.team_api_id = m.away_team_api_id
                     LEFT JOIN League AS l ON l.id = m.league_id
                     LEFT JOIN Country AS c ON c.id = m.country_id
                     ORDER BY m.id",
        },
        BenchmarkTruth {
            expansion: "llm_team",
            source: 0,
            table: "llm_team",
            key: &["team_long_name"],
            columns: &["team_short_name"],
            many: None,
            select: "SELECT team_long_name, team_short_name FROM Team ORDER BY id",
        },
        BenchmarkTruth {
            expansion: "llm_player",
            source: 0,
            table: "llm_player",
            key: &["player_name", "weight"],
            columns: &["birthday", "preferred_foot", "height"],
            many: None,
            // Every remaining player has the same preferred foot in all rows, or NULL in all rows.
            // Group the rows, because the attributes have no index on the player.
            select: "SELECT p.player_name, p.weight, p.birthday, f.preferred_foot, p.height
                     FROM Player AS p
                     LEFT JOIN (SELECT player_api_id, min(preferred_foot) AS preferred_foot
                                FROM Player_Attributes GROUP BY player_api_id) AS f
                       ON f.player_api_id = p.player_api_id
                     ORDER BY p.id",
        },
    ],
};
