//! Recordings of sound.
//!
//! The duration determines the price, so a recording is sent only if its duration can be read: from
//! the header of a WAV file, or from all frames of an MP3 file.

use serde_json::{Value as Json, json};

use super::{HtmlElement, MediaFormat, MediaKind, MediaWords, Medium, find_by_model};
use crate::Provider;

pub(super) static AUDIO: MediaKind = MediaKind {
    name: "audio",
    plural: "audio",
    noun: "a recording",
    format_names: "WAV or MP3",
    formats: &FORMATS,
    max_bytes: 20 << 20,
    shrink_hint: "cut it into parts, or convert it to MP3",
    measure,
    max_tokens: |model, seconds| {
        let rate = find_by_model(&TOKEN_RATES, model).unwrap_or(MAX_TOKENS_PER_SECOND);
        let seconds = seconds.unwrap_or(MAX_SECONDS).max(rate.window_seconds);
        let windows = (seconds / rate.window_seconds).ceil() * rate.window_seconds;
        (windows * rate.tokens_per_second).ceil() as u64 + OVERHEAD_TOKENS
    },
    is_billed_as_audio: true,
    html_element: HtmlElement::SoundPlayer,
    is_fetched: false,
    providers: &[Provider::Openai, Provider::Replay],
    build_message_part,
    rejection_phrases: &REJECTION_PHRASES,
    error_words: &["audio", "sound"],
    words: MediaWords {
        task: "Answer the question about the recording.",
        unknown: "if it cannot be heard in the recording",
        numbered: " [audio 1], [audio 2] and so on are the recordings that follow, in this order.",
        table: "Where a row has [audio 1], [audio 2] and so on, it has a recording: they follow the rows in this order. \
                Say what can be heard in them.\n",
    },
};

/// Maximum duration of a recording that is sent, in seconds.
const MAX_SECONDS: f64 = 20.0 * 60.0;
/// Maximum number of tokens that an endpoint adds around a recording.
const OVERHEAD_TOKENS: u64 = 16;

/// Tokens of a recording for a model.
#[derive(Debug, Clone, Copy)]
struct TokenRate {
    tokens_per_second: f64,
    /// The model pads a recording to a multiple of this duration.
    window_seconds: f64,
}

const fn token_rate(tokens_per_second: f64, window_seconds: f64) -> TokenRate {
    TokenRate { tokens_per_second, window_seconds }
}

/// Rate for models without a published rate: one token per 10 ms, the step of the spectrograms
/// that audio models read. Every published model merges several steps into one token.
const MAX_TOKENS_PER_SECOND: TokenRate = token_rate(100.0, 30.0);

/// Tokens per second of recordings. Entries are matched against the model's name or its prefix
/// before a hyphen; the first match applies.
///
/// Sources: `OpenAI`, "Managing costs"
/// (<https://developers.openai.com/api/docs/guides/realtime-costs>): one token per 100 ms of a
/// user's audio. Google, "Audio understanding" (<https://ai.google.dev/gemini-api/docs/audio>): 32
/// tokens per second. Voxtral (<https://arxiv.org/abs/2507.13264>): 12.5 per second, in windows of
/// 30 seconds. Qwen2-Audio (<https://arxiv.org/abs/2407.10759>) and Qwen2.5-Omni
/// (<https://arxiv.org/abs/2503.20215>): one token per 40 ms.
const TOKEN_RATES: [(&str, TokenRate); 8] = [
    ("gpt-audio", token_rate(10.0, 1.0)),
    ("gpt-4o-audio", token_rate(10.0, 1.0)),
    ("gpt-4o-mini-audio", token_rate(10.0, 1.0)),
    ("gemini", token_rate(32.0, 1.0)),
    ("voxtral", token_rate(12.5, 30.0)),
    ("qwen2-audio", token_rate(25.0, 30.0)),
    ("qwen2.5-omni", token_rate(25.0, 30.0)),
    ("Qwen2.5-Omni", token_rate(25.0, 30.0)),
];

/// Phrases in error messages that mean that a model accepts no recordings.
const REJECTION_PHRASES: [&str; 14] = [
    // OpenAI, Azure
    "input_audio is only supported by certain models",
    "content type. 'input_audio'",
    "does not support audio",
    "doesn't support audio",
    "do not support audio",
    "not support audio input",
    // OpenRouter
    "support input audio",
    "support audio input",
    // llama.cpp
    "audio input is not supported",
    // vLLM
    "not a multimodal model",
    "at most 0 audio",
    // DeepSeek and other strict parsers.
    "unknown variant `input_audio`",
    "unknown part type: input_audio",
    // Groq, and other endpoints that accept only text
    "content must be a string",
];

const FORMATS: [MediaFormat; 6] = [
    MediaFormat {
        name: "a WAV recording",
        mime_type: WAV,
        is_sent: true,
        matches: |bytes| {
            matches!(bytes, [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..])
        },
    },
    MediaFormat {
        name: "an MP3 recording",
        mime_type: MP3,
        is_sent: true,
        matches: |bytes| bytes.starts_with(b"ID3") || starts_with_two_frames(bytes),
    },
    MediaFormat {
        name: "a FLAC recording",
        mime_type: "audio/flac",
        is_sent: false,
        matches: |bytes| bytes.starts_with(b"fLaC"),
    },
    MediaFormat {
        name: "an Ogg recording",
        mime_type: "audio/ogg",
        is_sent: false,
        matches: |bytes| bytes.starts_with(b"OggS"),
    },
    MediaFormat {
        name: "an M4A recording",
        mime_type: "audio/mp4",
        is_sent: false,
        matches: |bytes| matches!(bytes.get(4..11), Some(b"ftypM4A" | b"ftypM4B")),
    },
    MediaFormat {
        name: "an AIFF recording",
        mime_type: "audio/aiff",
        is_sent: false,
        matches: |bytes| {
            bytes.starts_with(b"FORM") && matches!(bytes.get(8..12), Some(b"AIFF" | b"AIFC"))
        },
    },
];
const WAV: &str = "audio/wav";
const MP3: &str = "audio/mpeg";

/// Only chat completions accept recordings, in base64. Messages of the Responses API consist of
/// texts, images and files, and Anthropic's API has no recordings.
fn build_message_part(provider: Provider, recording: &Medium) -> Option<Json> {
    if !AUDIO.providers.contains(&provider) {
        return None;
    }
    let (mime_type, data) = recording.data()?;
    let format = if mime_type == WAV { "wav" } else { "mp3" };
    Some(json!({ "type": "input_audio", "input_audio": { "data": data, "format": format } }))
}

/// Returns the duration of a recording in seconds, or the reason why it cannot be sent.
fn measure(format: &MediaFormat, bytes: &[u8]) -> Result<Option<f64>, String> {
    let seconds = if format.mime_type == WAV { measure_wav(bytes) } else { measure_mp3(bytes) };
    let seconds = seconds.map_err(|reason| format!("is {} {reason}", format.name))?;
    if seconds > MAX_SECONDS {
        return Err(format!(
            "lasts {:.0} minutes, and hqdl's limit is {:.0}: cut it into parts",
            (seconds / 60.0).ceil(),
            MAX_SECONDS / 60.0
        ));
    }
    Ok(Some(seconds))
}

/// Returns the maximum duration of a WAV file. The rate in its header is checked against the other fields,
/// so that a wrong header cannot lower the price.
fn measure_wav(bytes: &[u8]) -> Result<f64, &'static str> {
    const TRUNCATED: &str = "whose header is incomplete: copy the file again";
    let mut rest = bytes.get(12..).ok_or(TRUNCATED)?;
    let mut bytes_per_second = None;
    while let Some((header, content)) = rest.split_at_checked(8) {
        let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        match &header[..4] {
            b"fmt " => {
                bytes_per_second = Some(read_wav_rate(content.get(..size).ok_or(TRUNCATED)?)?);
            }
            b"data" => {
                let rate = bytes_per_second.ok_or(TRUNCATED)?;
                // All further bytes count, because the chunk's size can be wrong (a recorder that
                // writes to a pipe does not know it), and a decoder may read further chunks.
                return match content.len() {
                    0 => Err("without sound: record it again"),
                    size => Ok(size as f64 / rate),
                };
            }
            _ => {}
        }
        // Chunks begin at even positions.
        rest = content.get(size.saturating_add(size % 2)..).ok_or(TRUNCATED)?;
    }
    Err(TRUNCATED)
}

/// Returns the bytes per second of a WAV file's `fmt ` chunk.
fn read_wav_rate(chunk: &[u8]) -> Result<f64, &'static str> {
    const UNREADABLE: &str = "with an unusual encoding: convert it to PCM or MP3";
    let [t0, t1, c0, c1, r0, r1, r2, r3, _, _, _, _, _, _, b0, b1, ..] = chunk else {
        return Err("whose header is incomplete: copy the file again");
    };
    let (encoding, channels) = (u16::from_le_bytes([*t0, *t1]), u16::from_le_bytes([*c0, *c1]));
    let (rate, bits) = (u32::from_le_bytes([*r0, *r1, *r2, *r3]), u16::from_le_bytes([*b0, *b1]));
    let encoding = if encoding == 0xfffe { read_extended_encoding(chunk) } else { Some(encoding) };
    // PCM, floating point, A-law, µ-law.
    let is_known = matches!(encoding, Some(1 | 3 | 6 | 7));
    let bytes_per_second = f64::from(rate) * f64::from(channels) * f64::from(bits.div_ceil(8));
    if !is_known || bytes_per_second <= 0.0 {
        return Err(UNREADABLE);
    }
    Ok(bytes_per_second)
}

/// Returns the encoding in the extended header of a `fmt ` chunk: a GUID that contains the code of
/// an ordinary header.
fn read_extended_encoding(chunk: &[u8]) -> Option<u16> {
    const GUID_END: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];
    let (code, end) = chunk.get(24..40)?.split_at_checked(2)?;
    (end == GUID_END).then(|| u16::from_le_bytes([code[0], code[1]]))
}

/// A frame of an MP3 file.
struct Mp3Frame {
    /// Length in bytes, with its header.
    length: usize,
    seconds: f64,
}

impl Mp3Frame {
    /// Parses the header of a frame; `None` if the bytes are no header.
    fn parse(bytes: &[u8]) -> Option<Self> {
        const BITRATES: [[u32; 14]; 2] = [
            [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
            [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
        ];
        const SAMPLE_RATES: [u32; 3] = [44_100, 48_000, 32_000];
        let [0xff, second, third, _, ..] = bytes else { return None };
        // MPEG 2.5, reserved, MPEG 2 and MPEG 1.
        let version = (second >> 3) & 3;
        let is_layer_3 = second >> 5 == 7 && (second >> 1) & 3 == 1;
        if !is_layer_3 || version == 1 {
            return None;
        }
        let is_first = version == 3;
        let divisor = [4, 0, 2, 1][usize::from(version)];
        let bitrates = &BITRATES[usize::from(!is_first)];
        let bitrate = bitrates.get(usize::from(third >> 4).checked_sub(1)?)? * 1000;
        let sample_rate = SAMPLE_RATES.get(usize::from((third >> 2) & 3))? / divisor;
        let samples = if is_first { 1152 } else { 576 };
        let padding = u32::from((third >> 1) & 1);
        let length = (samples / 8 * bitrate / sample_rate + padding) as usize;
        Some(Self { length, seconds: f64::from(samples) / f64::from(sample_rate) })
    }
}

fn starts_with_two_frames(bytes: &[u8]) -> bool {
    let second = |frame: Mp3Frame| bytes.get(frame.length..).and_then(Mp3Frame::parse);
    Mp3Frame::parse(bytes).and_then(second).is_some()
}

/// Returns the duration of an MP3 file: that of its frames, since their bitrates can differ.
fn measure_mp3(bytes: &[u8]) -> Result<f64, &'static str> {
    let mut rest = skip_id3(bytes);
    let mut seconds = 0.0;
    while !rest.is_empty() {
        match Mp3Frame::parse(rest) {
            // Outside of frames are tags, whose bytes can look like one header, but not like two.
            Some(frame) if seconds > 0.0 || starts_with_two_frames(rest) => {
                seconds += frame.seconds;
                rest = rest.get(frame.length..).unwrap_or_default();
            }
            _ => rest = &rest[1..],
        }
    }
    if seconds > 0.0 { Ok(seconds) } else { Err("without sound: copy the file again") }
}

/// Returns the bytes after the ID3 tag at the beginning of a file.
fn skip_id3(bytes: &[u8]) -> &[u8] {
    let [b'I', b'D', b'3', _, _, flags, a, b, c, d, ..] = bytes else { return bytes };
    let size =
        [a, b, c, d].into_iter().fold(0, |size, byte| (size << 7) | usize::from(byte & 0x7f));
    let footer = if flags & 0x10 == 0 { 0 } else { 10 };
    bytes.get(10 + size + footer..).unwrap_or_default()
}
