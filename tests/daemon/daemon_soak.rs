//! Soak test: memory and file handles stay constant while specs are edited, rows are added and
//! queries run. Not run by default: `HQDL_SOAK_MINUTES=20 cargo test --test daemon soak -- --ignored
//! --nocapture`.

use std::time::{Duration, Instant};

use serde_json::json;

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::project::{heroes_project, truthful_endpoint};

/// Returns bytes of memory and the number of open handles.
fn figures(daemon: &Daemon) -> (f64, f64) {
    let text = daemon.get("/metrics").expect_status(200).body;
    let of = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().parse::<f64>().unwrap()
    };
    (of("process_resident_memory_bytes") / 1e6, of("process_open_fds"))
}

#[test]
#[ignore = "takes as long as it is told to"]
fn soak() {
    let minutes: f64 =
        std::env::var("HQDL_SOAK_MINUTES").ok().and_then(|m| m.parse().ok()).unwrap_or(1.0);
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let began = Instant::now();
    let (mut rounds, mut queries, mut said) = (0u64, 0u64, Instant::now());
    let mut samples: Vec<(f64, f64, f64)> = Vec::new();
    while began.elapsed().as_secs_f64() < minutes * 60.0 {
        rounds += 1;
        let text = project.spec_text();
        match rounds % 6 {
            0 => project.write_spec(&text.replace("what the hero says", "what the hero shouts")),
            1 => project.write_spec(&text.replace("what the hero shouts", "what the hero says")),
            2 => project.write_spec(&text.replace("type = \"integer\"", "type = \"number\"")),
            3 => project.write_spec(&text.replace("type = \"number\"", "type = \"integer\"")),
            4 => project.execute_sql(&format!(
                "INSERT INTO hero (name, full_name) VALUES ('Soak {}', 'x')",
                rounds % 60
            )),
            _ => {
                let word = json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "motto",
                                   "value": format!("Z{rounds}") });
                daemon.post("/v1/overrides", &word).expect_status(200);
            }
        }
        let until = Instant::now() + Duration::from_millis(700);
        while Instant::now() < until {
            for sql in [
                "SELECT count(*) FROM hero",
                "SELECT name FROM hero WHERE {{LLMMap('What is the eye colour?', hero.name)}} = 'Blue'",
                "SELECT nothing",
            ] {
                daemon.post("/v1/query", &json!({ "sql": sql }));
                queries += 1;
            }
            daemon.get("/").expect_status(200);
            daemon.get("/specs/x/tables/llm").expect_status(200);
            std::thread::sleep(Duration::from_millis(20));
        }
        if rounds == 1 || said.elapsed() > Duration::from_secs(30) {
            said = Instant::now();
            let (mb, handles) = figures(&daemon);
            let minute = began.elapsed().as_secs_f64() / 60.0;
            println!(
                "{minute:5.1} min  {mb:6.1} MB  {handles:3.0} handles  {rounds} edits  {queries} queries  {} requests",
                endpoint.request_count()
            );
            samples.push((minute, mb, handles));
        }
    }
    // After the first quarter, nothing grows.
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter], samples.last().unwrap());
    assert!(late.1 <= early.1 * 1.15 + 4.0, "memory grew from {} to {} MB", early.1, late.1);
    assert!(late.2 <= early.2 + 6.0, "handles grew from {} to {}", early.2, late.2);
}
