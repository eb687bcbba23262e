//! Replies that are not answers: redirects, which cannot pass prompts and keys on to another host,
//! and broken replies.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hqdl_model::endpoint::Endpoint;
use hqdl_model::{Model, ModelError};
use hqdl_prompt::{AnswerForm, Prompt};
use hqdl_spec::{Echo, ModelSettings, Provider, Reuse};

/// Answers every request with a fixed response, and counts the requests.
fn serve(response: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let mut buffer = vec![0; 65536];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(response.as_bytes());
        }
    });
    (format!("http://{address}/v1"), count)
}

fn prompt() -> Prompt {
    Prompt {
        system: "system".into(),
        user: "user".to_owned(),
        schema: None,
        planned_output: 10,
        max_output: 10,
        input_tokens: 10,
        full_key_hash: None,
        has_sets: false,
        wants_logprobs: false,
        answer_form: AnswerForm::default(),
        rows: 1,
        temperature: None,
        media: Vec::new(),
        audio_tokens: 0,
        evidence: None,
    }
}

fn settings(base_url: String) -> ModelSettings {
    ModelSettings {
        provider: Provider::Openai,
        name: "test-model".to_owned(),
        base_url: Some(base_url),
        api_key_env: None,
        temperature: None,
        parameters: hqdl_spec::ModelParameters::new(),
        parameters_identity: false,
        max_output_tokens: 100,
        price: None,
        price_origin: hqdl_spec::PriceOrigin::Spec,
        recordings: Vec::new(),
        reuse: Reuse::default(),
        echo: Echo::default(),
        unknown: None,
    }
}

#[test]
fn a_redirect_is_an_error_that_names_its_location() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for status in [301, 302, 303, 307, 308] {
        let (other, reached) = serve("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned());
        let (base_url, _) = serve(format!(
            "HTTP/1.1 {status} Moved\r\nlocation: {other}/chat?token=abc\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        ));
        let endpoint = Endpoint::without_key(&settings(base_url)).unwrap();
        let error = runtime.block_on(endpoint.send_prompt(&prompt())).unwrap_err();
        assert_eq!(reached.load(Ordering::SeqCst), 0, "{status} was followed");
        assert!(matches!(error, ModelError::Refused { .. }), "{status}: {error:?}");
        let message = error.to_string();
        assert!(message.contains(&format!("{other}/chat")), "{status}: {message}");
        assert!(!message.contains("abc"), "a query can hold a secret: {message}");
    }
}

#[test]
fn a_broken_reply_is_described_without_words_of_libraries() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = |length: usize, body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    };
    let page = "<html><head><title>Sign in</title></head></html>";
    for (response, expected) in [
        (reply(0, ""), "sent an empty reply"),
        (reply(page.len(), page), "sent a reply that is not JSON: a web page, \"Sign in\""),
        (reply(500, "{"), "closed the connection in the middle of its reply"),
        (String::new(), "closed the connection without a reply"),
    ] {
        let (base_url, _) = serve(response);
        let expected_prefix = format!(" at {base_url} ");
        let endpoint = Endpoint::without_key(&settings(base_url)).unwrap();
        let error = runtime.block_on(endpoint.send_prompt(&prompt())).unwrap_err();
        assert_eq!(error.to_string(), format!("{}{expected_prefix}{expected}", endpoint.name()));
    }
}
