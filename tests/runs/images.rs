//! Tests of images: what the model sees, which entity the facts belong to, and what is never read
//! or paid for.

use base64::Engine as _;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, describe_media};
use hqdl_testkit::fixture::PHOTO_SPEC;
use hqdl_testkit::project::{CommandResult, Project};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n a cat";
const JPEG: &[u8] = b"\xff\xd8\xff\xe0 a dog";
const GIF: &[u8] = b"GIF89a a cow";
const WEBP: &[u8] = b"RIFF\x10\0\0\0WEBP a pig";

/// Starts a model that names what it sees: one of the four images, or a URL.
fn endpoint() -> Endpoint {
    Endpoint::start_answering(|_, row| {
        let all = row.key.iter().chain(&row.context).filter_map(Json::as_str);
        let seen: Vec<String> = all.map(animal).collect();
        seen.join(" ").into()
    })
}

fn animal(seen: &str) -> String {
    let known = [
        ("image/png", PNG, "cat"),
        ("image/jpeg", JPEG, "dog"),
        ("image/gif", GIF, "cow"),
        ("image/webp", WEBP, "pig"),
    ];
    let is = |(kind, bytes, _): &(&str, &[u8], &str)| {
        seen == format!("{kind} {}", blake3::hash(bytes).to_hex())
    };
    known.iter().find(|k| is(k)).map_or_else(|| seen.to_owned(), |(_, _, name)| (*name).to_owned())
}

fn hex(bytes: &[u8]) -> String {
    let hex = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!("x'{hex}'")
}

fn data_url(bytes: &[u8]) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
    format!("data:image/png;base64,{data}")
}

/// Creates a project whose table `pet` has these photos, as SQL, and whose folder contains files.
fn project(endpoint: &Endpoint, photos: &[&str]) -> Project {
    let values: Vec<String> =
        photos.iter().enumerate().map(|(n, photo)| format!("({n}, {photo})")).collect();
    let sql = format!(
        "CREATE TABLE pet (id INTEGER PRIMARY KEY, photo); INSERT INTO pet VALUES {}",
        values.join(", ")
    );
    let project = Project::new(endpoint, &sql, PHOTO_SPEC);
    std::fs::create_dir(project.path("img")).unwrap();
    std::fs::write(project.path("img/cat.png"), PNG).unwrap();
    std::fs::write(project.path("img/same cat.jpg"), PNG).unwrap();
    std::fs::write(project.path("img/dog.jpg"), JPEG).unwrap();
    std::fs::write(project.path("img/text.png"), "not an image").unwrap();
    project
}

fn query(project: &Project, sql: &str) -> CommandResult {
    project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql])
}

fn rows(project: &Project, sql: &str) -> Json {
    let ended = query(project, sql);
    let rows = ended.lines.first().map(|l| l["rows"].clone()).unwrap_or_default();
    assert!(rows.is_array(), "{sql}: {}", ended.stderr);
    rows
}

#[test]
fn an_image_is_asked_about_once_whatever_its_name() {
    let endpoint = endpoint();
    let url = "https://example.org/horse.png";
    let photos = [
        hex(PNG),
        "'img/cat.png'".to_owned(),
        "'./img/same cat.jpg'".to_owned(),
        format!("'{}'", data_url(PNG)),
        hex(JPEG),
        "'img/dog.jpg'".to_owned(),
        hex(GIF),
        hex(WEBP),
        format!("'{url}'"),
        "NULL".to_owned(),
    ];
    let photos: Vec<&str> = photos.iter().map(String::as_str).collect();
    let project = project(&endpoint, &photos);
    let sql =
        "SELECT id, {{VQA('What is it?', pet.photo, return_type='str')}} FROM pet ORDER BY id";
    let expected = json!([
        [0, "cat"],
        [1, "cat"],
        [2, "cat"],
        [3, "cat"],
        [4, "dog"],
        [5, "dog"],
        [6, "cow"],
        [7, "pig"],
        [8, url],
        [9, null]
    ]);
    assert_eq!(rows(&project, sql), expected);
    // Five images: the same image under another name is not a different one, and one has no name.
    assert_eq!(endpoint.request_count(), 5);
    for request in endpoint.received_requests() {
        let user = &request.body["messages"][1]["content"];
        assert!(user[0]["text"].as_str().unwrap().contains("[image 1]"), "{user}");
        // The file name does not reveal what the image shows.
        assert!(!request.body.to_string().contains("cat.png"));
        assert_eq!(describe_media(&request.body).len(), 1);
    }
    assert_eq!(rows(&project, sql), expected);
    // The same question as an LLMMap.
    let map = "SELECT {{LLMMap('What is it?', photo, image=true, return_type='str')}} FROM pet WHERE id < 2";
    assert_eq!(rows(&project, map), json!([["cat"], ["cat"]]));
    assert_eq!(endpoint.request_count(), 5);
    let caption = "SELECT {{ImageCaption(pet.photo)}} FROM pet WHERE id = 6";
    assert_eq!(rows(&project, caption), json!([["cow"]]));
    let asked = &endpoint.received_requests()[5];
    assert_eq!(asked.question.columns[0].about, "Describe what the image shows, in one sentence.");
    // A text is not an image unless the call declares it.
    let text = "SELECT {{LLMMap('What is it?', photo, return_type='str')}} FROM pet WHERE id = 1";
    assert_eq!(rows(&project, text), json!([["img/cat.png"]]));
}

#[test]
fn images_that_cannot_be_shown_get_a_state_and_cost_nothing() {
    let endpoint = endpoint();
    let photos = [
        "'img/none.png'",
        "'img/text.png'",
        "x'00ff'",
        "'../outside.png'",
        "'img'",
        "7",
        "''",
        "'/etc/passwd'",
        "'img/link.png'",
        "'data:image/png;base64,???'",
        "'data:text/plain,hi'",
        "'img/huge.png'",
        "'img/dog.jpg'",
        "'blake3:0123'",
    ];
    let project = project(&endpoint, &photos);
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("cat.png"), PNG).unwrap();
    std::os::unix::fs::symlink(outside.path().join("cat.png"), project.path("img/link.png"))
        .unwrap();
    let mut huge = PNG.to_vec();
    huge.resize((20 << 20) + 1, 0);
    std::fs::write(project.path("img/huge.png"), &huge).unwrap();
    project.execute_sql(&format!("INSERT INTO pet VALUES (100, zeroblob({}))", 5));
    let sql = "SELECT id, {{VQA('What is it?', photo, return_type='str')}} FROM pet WHERE id < 100 ORDER BY id";
    let all = rows(&project, sql);
    for (n, photo) in photos.iter().enumerate() {
        let expected = if *photo == "'img/dog.jpg'" { json!("dog") } else { Json::Null };
        assert_eq!(all[n][1], expected, "{photo}");
    }
    assert_eq!(endpoint.request_count(), 1);
    // Materializing gives the same, and each cell states the reason.
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["ok"], 1, "{ended:?}");
    let why = |key: &str| {
        project.run_hqdl(&["why", "--spec", "specs/x.toml", "pets", key, "animal"]).stdout
    };
    for (key, told) in [
        ("img/none.png", "the file `img/none.png` does not exist"),
        ("img/text.png", "img/text.png is not an image (PNG, JPEG, GIF or WebP)"),
        ("../outside.png", "is outside "),
        ("/etc/passwd", "is outside "),
        ("img/link.png", "is outside "),
        ("img", "is not a file"),
        ("img/huge.png", "is larger than 20 MiB"),
        ("data:image/png;base64,???", "base64 is broken"),
        ("data:text/plain,hi", "is not in base64"),
    ] {
        assert!(why(key).contains(told), "{key}: {}", why(key));
    }
    // A new file is another image, and is asked about.
    std::fs::write(project.path("img/none.png"), GIF).unwrap();
    project.run_materialize(&[]);
    assert!(why("img/none.png").contains("cow"), "{}", why("img/none.png"));
}

#[test]
fn an_expansion_shows_images_of_its_key_and_context() {
    let endpoint = endpoint();
    let photos = ["'img/cat.png'", "'img/same cat.jpg'", "'img/dog.jpg'"];
    let project = project(&endpoint, &photos);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.done_event()["cells"]["ok"], 2);
    assert_eq!(endpoint.request_count(), 2);
    let published = "SELECT id, animal FROM pet_expanded ORDER BY id";
    let expected = json!([[0, "cat"], [1, "cat"], [2, "dog"]]);
    assert_eq!(rows(&project, published), expected);
    // A call is routed to a column about images; no request is made.
    for call in ["VQA('Which animal is it?', photo)", "LLMMap('Which animal is it?', photo)"] {
        let sql = format!("SELECT id, {{{{{call}}}}} FROM pet ORDER BY id");
        assert_eq!(rows(&project, &sql), expected, "{call}");
    }
    assert_eq!(endpoint.request_count(), 2);
    // As context, beside a key that distinguishes the rows; also as a BLOB.
    project.execute_sql(&format!(
        "CREATE TABLE shop (id INTEGER PRIMARY KEY, front BLOB, back BLOB);
         INSERT INTO shop VALUES (1, {0}, {1}), (2, {1}, NULL), (3, 'img/cat.png', {0})",
        hex(GIF),
        hex(WEBP)
    ));
    let spec = project.spec_text().replace("name = \"pets\"", "name = \"shops\"").replace(
        "source = \"pet\"\nkey = [\"photo\"]\nimages = [\"photo\"]",
        "source = \"shop\"\nkey = [\"id\"]\ncontext = [\"front\", \"back\"]\nimages = [\"front\", \"back\"]",
    );
    std::fs::write(project.path("specs/x.toml"), spec).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    let animals = rows(&project, "SELECT animal FROM shop_expanded ORDER BY id");
    // First the key of the row, then what the images show.
    assert_eq!(animals, json!([["cow pig"], ["pig"], ["cat cow"]]));
    let shown: Vec<usize> =
        endpoint.received_requests()[2..].iter().map(|r| describe_media(&r.body).len()).collect();
    assert_eq!(shown.iter().sum::<usize>(), 5);
    // A query does not know the images of a row, so it sends no request without them.
    project.execute_sql("INSERT INTO shop VALUES (4, x'00', NULL)");
    let asked = endpoint.request_count();
    let sql = "SELECT {{LLMMap('Which animal is it?', shop.id)}} FROM shop WHERE id = 4";
    assert_eq!(rows(&project, sql), json!([[null]]));
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn a_budget_covers_the_maximum_cost_of_an_image() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'", "'img/dog.jpg'", "'https://x.org/a.png'"]);
    // At most 1,445 tokens per image: 85, and 170 for each of eight tiles.
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["requests"], 3);
    assert!(plan["totals"]["input_tokens"].as_u64().unwrap() > 3 * 1445, "{plan}");
    let most = plan["totals"]["cost_usd"]["most"].as_f64().unwrap();
    // Enough for one request, but not for two: each is reserved before it is sent.
    let ended = project.run_materialize(&["--budget", "0.009"]).expect_exit_code(3);
    let spent = ended.done_event()["cost_usd"].as_f64().unwrap();
    assert!(spent <= 0.009 && spent > 0.0, "{ended:?}");
    project.run_materialize(&["--budget", &format!("{}", 2.0 * most)]).expect_exit_code(0);
    let (input, _) = endpoint.billed_tokens();
    assert!(input <= plan["totals"]["input_tokens"].as_u64().unwrap() * 11 / 10);
    // `explain` prints the maximum cost of a query.
    let sql = "SELECT {{ImageCaption(photo)}} FROM pet";
    let told =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql]).expect_exit_code(0);
    let most = told.lines[0]["input_tokens"].as_u64();
    assert!(most.unwrap_or_default() > 3 * 1445, "{:?}", told.lines[0]);
}

#[test]
fn a_model_without_image_input_reports_it_once() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'", "'img/dog.jpg'"]);
    let words = "Invalid content type. image_url is only supported by certain models.";
    endpoint.add_fault(Fault::status(400, words, "invalid_request_error"), Frequency::Always);
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(4);
    assert!(ended.stdout.contains("gpt-4o does not accept images"), "{ended:?}");
    assert_eq!(endpoint.request_count(), 1);
    // Stored like other rejected features.
    let ended = query(&project, "SELECT {{ImageCaption(photo)}} FROM pet").expect_exit_code(4);
    assert!(ended.stderr.contains("does not accept images"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 1);
    // Questions about texts are still sent.
    endpoint.clear_faults();
    rows(&project, "SELECT {{LLMMap('Is it a name?', photo)}} FROM pet");
    assert!(endpoint.request_count() > 1);
}

/// Ollama and llama.cpp report it with status 500.
#[test]
fn a_server_that_fails_at_images_gets_no_second_request() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'", "'img/dog.jpg'"]);
    let words = "image input is not supported - hint: you may need to provide the mmproj";
    endpoint.add_fault(Fault::status(500, words, "server_error"), Frequency::Always);
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(4);
    assert!(ended.stdout.contains("gpt-4o does not accept images"), "{ended:?}");
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn a_file_that_changes_is_another_image() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'"]);
    project.run_materialize(&[]).expect_exit_code(0);
    std::fs::write(project.path("img/cat.png"), JPEG).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(rows(&project, "SELECT animal FROM pet_expanded"), json!([["dog"]]));
    std::fs::write(project.path("img/cat.png"), PNG).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(rows(&project, "SELECT animal FROM pet_expanded"), json!([["cat"]]));
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn a_refused_image_fails_for_its_row() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'", "'img/dog.jpg'", "'https://x.org/a.png'"]);
    let words = "Error while downloading https://x.org/a.png.";
    endpoint.add_fault_where(
        Fault::status(400, words, "invalid_image_url"),
        Frequency::Always,
        |q| q.rows.len() == 1 && q.table == "pets",
    );
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["error"], 3, "{ended:?}");
    endpoint.clear_faults();
    project.run_materialize(&[]).expect_exit_code(0);
}

#[test]
fn recordings_answer_by_the_identity_of_an_image() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'", "'https://x.org/a.png'", "'img/none.png'"]);
    let facts = [
        json!({ "question": "animal", "value": format!("blake3:{}", blake3::hash(PNG).to_hex()), "answer": "tomcat" }),
        json!({ "question": "animal", "value": "https://x.org/a.png", "answer": "ape" }),
        json!({ "question": "animal", "value": "img/none.png", "answer": "nothing" }),
    ];
    let lines: Vec<String> = facts.iter().map(Json::to_string).collect();
    std::fs::write(project.path("r.jsonl"), lines.join("\n")).unwrap();
    project.run_materialize(&["--recordings", "r.jsonl"]).expect_exit_code(1);
    let published = "SELECT animal FROM pet_expanded ORDER BY id";
    assert_eq!(rows(&project, published), json!([["tomcat"], ["ape"], [null]]));
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn image_settings_of_a_spec_are_checked() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'img/cat.png'"]);
    let spec = project.spec_text();
    for (from, to, told) in [
        (
            "images = [\"photo\"]",
            "images = [\"foto\"]",
            "`foto` is not a column of `key` or `context`",
        ),
        (
            "images = [\"photo\"]",
            "images = [\"photo\"]\nrows_per_request = 5",
            "hqdl sends rows with images one per request",
        ),
    ] {
        std::fs::write(project.path("specs/x.toml"), spec.replace(from, to)).unwrap();
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told) || ended.stdout.contains(told), "{ended:?}");
    }
    // Another folder, and batches.
    std::fs::write(
        project.path("specs/x.toml"),
        spec.replace("data.sqlite\"", "data.sqlite\"\nimages = \"../img\""),
    )
    .unwrap();
    project.execute_sql("UPDATE pet SET photo = 'cat.png'");
    project.run_materialize(&["--rows-per-request", "10"]).expect_exit_code(0);
    let ended = project.run_materialize(&["--batch"]).expect_exit_code(2);
    assert!(ended.stdout.contains("which batches do not support"), "{ended:?}");
    let bad = query(&project, "SELECT {{LLMMap('What?', photo, image='maybe')}} FROM pet")
        .expect_exit_code(2);
    assert!(bad.stderr.contains("`image` is not a boolean"), "{}", bad.stderr);
    let bad = query(&project, "SELECT {{LLMQA('What?', (SELECT photo FROM pet), image=true)}}")
        .expect_exit_code(2);
    assert!(bad.stderr.contains("has no argument `image`"), "{}", bad.stderr);
}

#[test]
fn undeclared_media_are_rejected_and_cost_nothing() {
    let endpoint = endpoint();
    let url = format!("'{}'", data_url(PNG));
    for (photo, told) in [
        (hex(PNG), "add image=true"),
        (url, "add image=true"),
        (hex(b"ID3\x04 a song"), "add audio=true"),
        ("'data:audio/mpeg;base64,SUQz'".to_owned(), "add audio=true"),
    ] {
        let project = project(&endpoint, &[&photo]);
        for call in ["{{LLMMap('What colour is it?', photo)}}", "answer(photo, 'What colour?')"] {
            let ended = query(&project, &format!("SELECT {call} FROM pet")).expect_exit_code(2);
            assert!(ended.stderr.contains(told), "{photo} {call}: {}", ended.stderr);
        }
    }
    // File names and data of other types are texts.
    let project = project(&endpoint, &["'img/cat.png'", "'song.mp3'", "'data:text/plain,hi'"]);
    query(&project, "SELECT {{LLMMap('Is it a photo?', photo)}} FROM pet").expect_exit_code(0);
    assert!(endpoint.request_count() > 0);
}
