//! Tests of recordings: which are sent and how, what they cost, and what is never sent or paid for.

use base64::Engine as _;
use serde_json::{Value as Json, json};

use hqdl::spec::media::{MediaInfo, Unusable};
use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, describe_media};
use hqdl_testkit::project::{CommandResult, Project};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n a cat";

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-audio"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 2.5, audio_input = 32, output = 10 }

[[expansion]]
name = "calls"
source = "call"
key = ["clip"]
audio = ["clip"]
[[expansion.column]]
name = "mood"
about = "the mood of the caller"
questions = ["How does the caller feel?"]
"#;

/// Returns a WAV file of 8,000 bytes per second.
fn wav(seconds: u32, sample: u8) -> Vec<u8> {
    let size = seconds * 8000;
    let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    bytes.extend(8000_u32.to_le_bytes());
    bytes.extend(8000_u32.to_le_bytes());
    bytes.extend(b"\x01\0\x08\0data");
    bytes.extend(size.to_le_bytes());
    bytes.resize(bytes.len() + size as usize, sample);
    bytes
}

/// Returns an MP3 file with frames of 52 bytes, which last 576 / 11,025 seconds each.
fn mp3(frames: usize, filler: u8) -> Vec<u8> {
    let mut frame = vec![0xff, 0xe3, 0x10, 0];
    frame.resize(52, filler);
    frame.repeat(frames)
}

/// Starts a model that knows three recordings and a photo.
fn endpoint() -> Endpoint {
    let known = [
        ("audio/wav", wav(3, 1), "calm"),
        ("audio/mp3", mp3(100, 2), "angry"),
        ("audio/wav", wav(1, 3), "happy"),
        ("image/png", PNG.to_vec(), "a cat"),
    ];
    let describe = |kind: &str, bytes: &[u8]| format!("{kind} {}", blake3::hash(bytes).to_hex());
    let known = known.map(|(kind, bytes, answer)| (describe(kind, &bytes), answer));
    Endpoint::start_answering(move |_, row| {
        let shown = row.key.iter().chain(&row.context).filter_map(Json::as_str);
        let answer = |shown: &str| known.iter().find(|(name, _)| name == shown).map(|(_, a)| *a);
        let answers: Vec<&str> = shown.map(|shown| answer(shown).unwrap_or("?")).collect();
        answers.join(" ").into()
    })
}

fn hex(bytes: &[u8]) -> String {
    let hex = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!("x'{hex}'")
}

/// Creates a project whose table `call` has these clips, as SQL, and whose folder contains files.
fn project(endpoint: &Endpoint, clips: &[&str]) -> Project {
    let values: Vec<String> =
        clips.iter().enumerate().map(|(n, clip)| format!("({n}, {clip})")).collect();
    let sql = format!(
        "CREATE TABLE call (id INTEGER PRIMARY KEY, clip); INSERT INTO call VALUES {}",
        values.join(", ")
    );
    let project = Project::new(endpoint, &sql, SPEC);
    for (name, bytes) in [
        ("calm.wav", wav(3, 1)),
        // The content determines the format, not the name.
        ("angry.wav", mp3(100, 2)),
        ("happy", wav(1, 3)),
        ("cat.mp3", PNG.to_vec()),
        ("empty.mp3", Vec::new()),
        ("text.mp3", b"not a recording".to_vec()),
        ("cut.wav", wav(1, 1)[..30].to_vec()),
        ("cut.mp3", b"ID3\x04\0\0\0\0\0\0".to_vec()),
        ("long.mp3", mp3(35_000, 2)),
        ("huge.wav", wav(2700, 2)),
        ("music.flac", b"fLaC\0\0\0\x22".to_vec()),
        ("voice.ogg", b"OggS\0\x02".to_vec()),
        ("memo.m4a", b"\0\0\0\x20ftypM4A \0\0\0\0".to_vec()),
    ] {
        std::fs::create_dir_all(project.path("clips")).unwrap();
        std::fs::write(project.path("clips").join(name), bytes).unwrap();
    }
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
fn a_recording_is_asked_about_once_whatever_its_name() {
    let endpoint = endpoint();
    let data = base64::engine::general_purpose::STANDARD.encode(wav(3, 1));
    let clips = [
        "'clips/calm.wav'".to_owned(),
        hex(&wav(3, 1)),
        format!("'data:audio/x-wav;base64,{data}'"),
        "'clips/angry.wav'".to_owned(),
        "'./clips/happy'".to_owned(),
        "NULL".to_owned(),
    ];
    let clips: Vec<&str> = clips.iter().map(String::as_str).collect();
    let project = project(&endpoint, &clips);
    let sql = "SELECT id, {{LLMMap('What is the mood?', clip, audio=true, return_type='str')}} FROM call ORDER BY id";
    let expected =
        json!([[0, "calm"], [1, "calm"], [2, "calm"], [3, "angry"], [4, "happy"], [5, null]]);
    assert_eq!(rows(&project, sql), expected);
    // The endpoint has checked the fields of each part.
    assert_eq!(endpoint.request_count(), 3);
    for request in endpoint.received_requests() {
        let user = &request.body["messages"][1]["content"];
        assert!(user[0]["text"].as_str().unwrap().contains("[audio 1]"), "{user}");
        assert!(!request.body.to_string().contains("clips"), "the file name is not sent");
        let system = request.body["messages"][0]["content"].to_string();
        assert!(system.contains("the question about the recording"), "{system}");
    }
    assert_eq!(rows(&project, sql), expected);
    assert_eq!(endpoint.request_count(), 3);
    let transcript = "SELECT {{Transcribe(call.clip)}} FROM call WHERE id = 4";
    assert_eq!(rows(&project, transcript), json!([["happy"]]));
    let asked = &endpoint.received_requests()[3].question.columns[0].about;
    assert_eq!(asked, "Write down what is said, word for word.");
    // Other ingredients send recordings, too.
    let calls = [
        "{{LLMClassify(clip, ['calm', 'angry'], audio=true)}}",
        "{{LLMExtract('The caller', clip, '{\"mood\": \"str\"}', audio=true)}}.mood",
        "{{VQA('What is the mood?', clip, audio=true, return_type='str')}}",
    ];
    for call in calls {
        let sql = format!("SELECT {call} FROM call WHERE id = 0");
        assert_eq!(rows(&project, &sql), json!([["calm"]]), "{call}");
    }
}

#[test]
fn a_column_about_recordings_is_filled_and_answers_calls() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/angry.wav'"]);
    project.run_materialize(&[]).expect_exit_code(0);
    let expected = json!([[0, "calm"], [1, "angry"]]);
    assert_eq!(rows(&project, "SELECT id, mood FROM call_expanded ORDER BY id"), expected);
    let call = "SELECT id, {{LLMMap('How does the caller feel?', clip, audio=true)}} FROM call ORDER BY id";
    assert_eq!(rows(&project, call), expected);
    assert_eq!(endpoint.request_count(), 2);
    // The file's content is the identity, so a renamed file is the same recording.
    std::fs::rename(project.path("clips/calm.wav"), project.path("clips/new")).unwrap();
    project.execute_sql("UPDATE call SET clip = 'clips/new' WHERE id = 0");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 2);
    let ended = project.run_materialize(&["--batch"]).expect_exit_code(2);
    assert!(ended.stdout.contains("sends audio, which batches do not support"), "{ended:?}");
}

#[test]
fn the_duration_is_paid_for_and_known_in_advance() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/angry.wav'"]);
    // 10 tokens per second, for 3 and for 5.2 seconds, and 16 for each recording.
    let audio: [u32; 2] = [30 + 16, 60 + 16];
    let plan = project.run_plan(&[]);
    let input = plan["totals"]["input_tokens"].as_u64().unwrap();
    assert!((200..800).contains(&input), "{plan}");
    let likely = plan["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    let audio_usd = f64::from(audio[0] + audio[1]) * 32.0 / 1e6;
    assert!(likely > audio_usd && likely < 2.0 * audio_usd, "{plan}");
    let most = plan["totals"]["cost_usd"]["most"].as_f64().unwrap();
    let sql = "SELECT {{LLMMap('What?', clip, audio=true)}} FROM call";
    let bound =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql]).expect_exit_code(0);
    assert!(bound.lines[0]["cost_usd"].as_f64().unwrap() > audio_usd, "{:?}", bound.lines[0]);
    // Not enough for one request: nothing is sent.
    project.run_materialize(&["--budget", &format!("{}", audio_usd / 4.0)]).expect_exit_code(3);
    assert_eq!(endpoint.request_count(), 0);
    let ended = project.run_materialize(&["--budget", &format!("{}", most * 3.0)]);
    let ended = ended.expect_exit_code(0);
    let (input, output) = endpoint.billed_tokens();
    let text = input - u64::from(audio[0] + audio[1]);
    let expected = audio_usd + (text as f64 * 2.5 + output as f64 * 10.0) / 1e6;
    let spent = ended.done_event()["cost_usd"].as_f64().unwrap();
    assert!((spent - expected).abs() < 1e-9, "{spent} {expected}");
    assert!(spent <= most, "{spent} {most}");
}

/// Many endpoints report one number of input tokens.
#[test]
fn recordings_that_are_not_reported_separately_get_the_price_of_recordings() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'"]);
    endpoint.set_usage_fn(|_, input, output| {
        json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output })
    });
    let ended = project.run_materialize(&["--budget", "1"]).expect_exit_code(0);
    let spent = ended.done_event()["cost_usd"].as_f64().unwrap();
    assert!(spent >= 46.0 * 32.0 / 1e6, "{spent}");
}

#[test]
fn recordings_that_cannot_be_sent_get_a_reason_and_cost_nothing() {
    let endpoint = endpoint();
    let known = [
        ("clips/none.wav", "the file `clips/none.wav` does not exist"),
        ("clips/empty.mp3", "is empty"),
        ("clips/text.mp3", "is not a recording (WAV or MP3)"),
        ("clips/cut.wav", "is a WAV recording whose header is incomplete"),
        ("clips/cut.mp3", "is an MP3 recording without sound"),
        ("clips/long.mp3", "lasts 31 minutes, and hqdl's limit is 20: cut it into parts"),
        ("clips/huge.wav", "is larger than 20 MiB, hqdl's limit for a recording"),
        ("clips/music.flac", "is a FLAC recording: convert it to WAV or MP3"),
        ("clips/voice.ogg", "is an Ogg recording: convert it to WAV or MP3"),
        ("clips/memo.m4a", "is an M4A recording: convert it to WAV or MP3"),
        ("clips/cat.mp3", "is an image, not a recording: write `media` instead of `audio`"),
        ("../outside.wav", "is outside "),
        ("/etc/passwd", "is outside "),
        ("https://example.org/a.mp3", "endpoints do not fetch a recording: download it"),
        ("clips", "is not a file"),
    ];
    let clips: Vec<String> = known.iter().map(|(clip, _)| format!("'{clip}'")).collect();
    let mut clips: Vec<&str> = clips.iter().map(String::as_str).collect();
    clips.push("'clips/calm.wav'");
    let project = project(&endpoint, &clips);
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["ok"], 1, "{ended:?}");
    assert_eq!(endpoint.request_count(), 1);
    for (clip, told) in known {
        let why = project.run_hqdl(&["why", "--spec", "specs/x.toml", "calls", clip, "mood"]);
        assert!(why.stdout.contains(told), "{clip}: {}", why.stdout);
    }
    let sql = "SELECT count(*) FROM call WHERE {{LLMMap('What?', clip, audio=true, return_type='str')}} IS NOT NULL";
    assert_eq!(rows(&project, sql), json!([[1]]));
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn one_column_can_contain_images_and_recordings() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/cat.mp3'", "'clips/text.mp3'"]);
    let sql = "SELECT id, {{LLMMap('What is it?', clip, media=true, return_type='str')}} FROM call ORDER BY id";
    let expected = json!([[0, "calm"], [1, "a cat"], [2, null]]);
    assert_eq!(rows(&project, sql), expected);
    let shown: Vec<Vec<String>> =
        endpoint.received_requests().iter().map(|r| describe_media(&r.body)).collect();
    assert_eq!(shown.iter().map(Vec::len).sum::<usize>(), 2);
    project.write_spec(&project.spec_text().replace("audio = [", "media = ["));
    project.run_materialize(&[]).expect_exit_code(1);
    let moods = json!([[0, "calm"], [1, "a cat"], [2, null]]);
    assert_eq!(rows(&project, "SELECT id, mood FROM call_expanded ORDER BY id"), moods);
    // An image in a call that declares a recording is not sent.
    let asked = endpoint.request_count();
    let sql = "SELECT {{LLMMap('What?', clip, audio=true)}} FROM call WHERE id = 1";
    assert_eq!(rows(&project, sql), json!([[null]]));
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn a_model_without_audio_input_reports_it_once() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/angry.wav'"]);
    let words = "This model does not support audio content.";
    endpoint.add_fault(Fault::status(400, words, "invalid_request_error"), Frequency::Always);
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(4);
    assert!(ended.stdout.contains("gpt-audio does not accept audio"), "{ended:?}");
    assert_eq!(endpoint.request_count(), 1);
    endpoint.clear_faults();
    let sql = "SELECT {{LLMMap('What?', clip, audio=true)}} FROM call";
    let ended = query(&project, sql).expect_exit_code(4);
    assert!(ended.stderr.contains("use a model that accepts audio"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 1);
    // Images are another kind.
    let sql = "SELECT {{VQA('What?', 'clips/cat.mp3', return_type='str')}}";
    assert_eq!(rows(&project, sql), json!([["a cat"]]));
}

#[test]
fn an_api_without_audio_input_gets_no_request() {
    for provider in ["anthropic", "openai-responses"] {
        let endpoint = endpoint();
        let project = project(&endpoint, &["'clips/calm.wav'"]);
        let spec = project.spec_text();
        project.write_spec(&spec.replace("\"openai\"", &format!("\"{provider}\"")));
        let ended = project.run_materialize(&[]).expect_exit_code(2);
        let told = format!("provider `{provider}` accepts no audio");
        assert!(ended.stderr.contains(&told), "{ended:?}");
        // The content of other columns and of calls is known only when it is read.
        project.edit_spec("audio = [", "media = [");
        project.run_materialize(&[]).expect_exit_code(1);
        let why = ["why", "--spec", "specs/x.toml", "calls", "clips/calm.wav", "mood"];
        let why = project.run_hqdl(&why);
        assert!(why.stdout.contains("API has no such input"), "{why:?}");
        let sql = "SELECT {{Transcribe(clip)}} FROM call";
        query(&project, sql).expect_exit_code(4);
        assert_eq!(endpoint.request_count(), 0);
    }
}

#[test]
fn audio_settings_of_a_spec_are_checked() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'"]);
    let spec = project.spec_text();
    for (from, to, told) in [
        (
            "audio = [\"clip\"]",
            "audio = [\"klip\"]",
            "`klip` is not a column of `key` or `context`",
        ),
        (
            "audio = [\"clip\"]",
            "audio = [\"clip\"]\nrows_per_request = 5",
            "hqdl sends rows with audio one per request",
        ),
        ("audio = [\"clip\"]", "audio = [\"clip\"]\nimages = [\"clip\"]", "`clip` is listed twice"),
        ("data.sqlite\"", "data.sqlite\"\nmedia = \"none\"", "there is no directory"),
        (
            "data.sqlite\"",
            "data.sqlite\"\nmedia = \"../clips\"\nimages = \"../clips\"",
            "`images` is the former name of `media`",
        ),
    ] {
        project.write_spec(&spec.replace(from, to));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told) || ended.stdout.contains(told), "{told}: {ended:?}");
    }
    project.write_spec(&spec.replace("data.sqlite\"", "data.sqlite\"\nmedia = \"../clips\""));
    project.execute_sql("UPDATE call SET clip = 'calm.wav'");
    project.run_materialize(&[]).expect_exit_code(0);
}

/// The page plays recordings of published keys, and shows images; it serves no other file.
#[test]
fn the_page_of_a_cell_plays_its_recording() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/cat.mp3'"]);
    project.write_spec(&project.spec_text().replace("audio = [", "media = ["));
    project.run_materialize(&[]).expect_exit_code(0);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("complete");
    let query = |clip: &str| format!("table=calls&column=mood&key=clips%2F{clip}");
    let page = |clip: &str| daemon.get(&format!("/specs/x/cell?{}", query(clip)));
    let medium =
        |clip: &str, part: u32| daemon.get(&format!("/specs/x/medium?{}&part={part}", query(clip)));
    let recording = page("calm.wav").expect_status(200);
    let player = format!("src=\"/specs/x/medium?{}&part=0\"", query("calm.wav"));
    let player = player.replace('&', "&amp;");
    let controls = "<audio controls preload=\"none\" ";
    assert!(recording.body.contains(&format!("{controls}{player}")), "{}", recording.body);
    assert!(recording.headers.contains("media-src 'self'"), "{}", recording.headers);
    let sound = medium("calm.wav", 0).expect_status(200);
    assert!(sound.headers.contains("content-type: audio/wav"), "{}", sound.headers);
    assert!(sound.headers.contains("content-length: 24044"), "{}", sound.headers);
    assert!(page("cat.mp3").body.contains("<img class=\"medium\""));
    assert!(medium("cat.mp3", 0).expect_status(200).headers.contains("image/png"));
    // No other part of the key, no file that no row names, and no other folder.
    assert!(medium("calm.wav", 1).expect_status(400).body.contains("not an image or a recording"));
    medium("angry.wav", 0).expect_status(400);
    assert_ne!(medium("..%2F..%2Fdata.sqlite", 0).status, 200);
    std::fs::write(project.path("clips/calm.wav"), "no longer a recording").unwrap();
    assert!(medium("calm.wav", 0).expect_status(400).body.contains("is not an image"));
}

#[test]
fn durations_are_read_from_the_files() {
    let seconds = |bytes: &[u8]| MediaInfo::from_bytes(bytes).unwrap().seconds.unwrap();
    assert_eq!(seconds(&wav(3, 1)), 3.0);
    assert!((seconds(&mp3(100, 2)) - 57_600.0 / 11_025.0).abs() < 1e-9);
    // A tag with 300 bytes before the frames, and one after them.
    let mut tagged = b"ID3\x04\0\0\0\0\x02\x2c".to_vec();
    tagged.resize(310, 0xff);
    tagged.extend(mp3(100, 2));
    tagged.extend(b"TAG");
    tagged.resize(tagged.len() + 125, b' ');
    assert!((seconds(&tagged) - 57_600.0 / 11_025.0).abs() < 1e-9);
    // A recorder that writes to a pipe does not know the size of the data.
    let mut piped = wav(3, 1);
    piped[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(seconds(&piped), 3.0);
    // A chunk of odd length before the data.
    let mut listed = wav(3, 1);
    listed.splice(36..36, *b"LIST\x03\0\0\0abc\0");
    assert_eq!(seconds(&listed), 3.0);
    // A rate in the header that does not match its other fields cannot lower the price.
    let mut cheap = wav(3, 1);
    cheap[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(seconds(&cheap), 3.0);
    // Every prefix of a file is handled.
    for bytes in [wav(1, 1)[..60].to_vec(), mp3(3, 2), tagged[..400].to_vec()] {
        for end in 0..bytes.len() {
            let _ = MediaInfo::from_bytes(&bytes[..end]);
        }
    }
    let unusual = |at: usize, value: u8| {
        let mut bytes = wav(1, 1);
        bytes[at] = value;
        MediaInfo::from_bytes(&bytes)
    };
    for (at, value) in [(20, 2), (22, 0), (34, 0)] {
        assert!(matches!(unusual(at, value), Err(Unusable::Refused(..))), "{at}");
    }
    // A decoder may play further data after a short first chunk.
    let mut divided = wav(3, 1);
    divided[40..44].copy_from_slice(&2_u32.to_le_bytes());
    assert_eq!(seconds(&divided), 3.0);
    // An extended header is accepted with the GUID of a known encoding.
    let extended = |guid: &[u8; 16]| {
        let mut bytes = wav(3, 1);
        bytes[16] = 40;
        bytes[20..22].copy_from_slice(&[0xfe, 0xff]);
        bytes.splice(36..36, b"\x16\0\x08\0\0\0\0\0".iter().chain(guid).copied());
        MediaInfo::from_bytes(&bytes)
    };
    let pcm = *b"\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71";
    assert_eq!(extended(&pcm).unwrap().seconds, Some(3.0));
    for at in [0, 7, 15] {
        let mut unknown = pcm;
        unknown[at] = 2;
        assert!(matches!(extended(&unknown), Err(Unusable::Refused(..))), "{at}");
    }
}

/// The path of a recording does not show how long the recording is.
#[test]
fn the_bound_of_a_query_is_that_of_its_longest_recording() {
    let endpoint = endpoint();
    let short = format!("'clips/{}calm.wav'", "./".repeat(200));
    let project = project(&endpoint, &["'clips/l'", &short]);
    std::fs::write(project.path("clips/l"), wav(600, 4)).unwrap();
    project.write_spec(&format!(
        "{}[[expansion.column]]\nname = \"topic\"\nabout = \"the topic\"\nquestions = [\"Topic?\"]\n",
        project.spec_text()
    ));
    let call = |question: &str| format!("{{{{LLMMap('{question}', clip, audio=true)}}}}");
    let sql = format!(
        "SELECT id FROM call WHERE {} = 'calm' AND {} = 'x' LIMIT 1",
        call("How does the caller feel?"),
        call("Topic?")
    );
    let bound = project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", &sql]);
    let bound = &bound.expect_exit_code(0).lines[0];
    // Each column may need a request of its own, with 600 seconds of 10 tokens.
    assert!(bound["input_tokens"].as_u64().unwrap() > 2 * 6000, "{bound}");
    assert!(bound["cost_usd"].as_f64().unwrap() > 2.0 * 6000.0 * 32.0 / 1e6, "{bound}");
}

/// Recordings can cost ten times as much as text, so they are never billed at the rate of text.
#[test]
fn a_price_without_a_rate_for_recordings_sends_none() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'"]);
    project.edit_spec("audio_input = 32, ", "");
    let ended = project.run_materialize(&["--budget", "1"]).expect_exit_code(2);
    assert!(ended.stderr.contains("set `audio_input`"), "{ended:?}");
    // The content of other columns and of calls is known only when it is read.
    project.edit_spec("audio = [", "media = [");
    project.run_materialize(&[]).expect_exit_code(1);
    let why =
        project.run_hqdl(&["why", "--spec", "specs/x.toml", "calls", "clips/calm.wav", "mood"]);
    assert!(why.stdout.contains("set `audio_input`"), "{why:?}");
    let sql = "SELECT {{Transcribe(clip)}} FROM call";
    assert_eq!(rows(&project, sql), json!([[null]]));
    assert_eq!(endpoint.request_count(), 0);
    // The price book has a rate for this model at OpenAI.
    let spec = project.spec_text();
    project.write_spec(&spec.replace(&format!("base_url = \"{}\"\n", endpoint.base_url()), ""));
    let plan = project.run_plan(&[]);
    let usd = plan["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    assert!(usd > 46.0 * 32.0 / 1e6, "{plan}");
    // A free model needs no rate.
    project.write_spec(&spec.replace("input = 2.5", "input = 0"));
    project.run_materialize(&[]).expect_exit_code(0);
}

#[test]
fn a_column_of_several_kinds_survives_a_model_without_audio_input() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'", "'clips/cat.mp3'", "'clips/angry.wav'"]);
    project.edit_spec("audio = [", "media = [");
    let words = "This model does not support audio content.";
    endpoint.add_fault(Fault::status(400, words, "invalid_request_error"), Frequency::Once);
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["ok"], 1, "{ended:?}");
    let sql = "SELECT mood FROM call_expanded ORDER BY id";
    assert_eq!(rows(&project, sql), json!([[null], ["a cat"], [null]]));
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn an_error_that_names_an_audio_model_is_not_about_the_recording() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'"]);
    let words = "'response_format' of type 'json_schema' is not supported with gpt-audio.";
    endpoint.add_fault(Fault::status(400, words, "invalid_request_error"), Frequency::Once);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn a_call_about_any_medium_reads_a_column_of_one_kind() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/calm.wav'"]);
    project.run_materialize(&[]).expect_exit_code(0);
    let sql = "SELECT {{LLMMap('How does the caller feel?', clip, media=true)}} FROM call";
    assert_eq!(rows(&project, sql), json!([["calm"]]));
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn recordings_that_cannot_be_read_are_not_planned() {
    let endpoint = endpoint();
    let project = project(&endpoint, &["'clips/none.wav'", "'clips/text.mp3'", "'clips/cat.mp3'"]);
    let plan = project.run_plan(&[]);
    assert!(plan["totals"]["input_tokens"].as_u64().unwrap() < 1000, "{plan}");
    project.run_materialize(&["--budget", "1"]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), 0);
}
