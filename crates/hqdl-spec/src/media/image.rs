//! Images.

use serde_json::{Value as Json, json};

use super::{HtmlElement, MediaFormat, MediaKind, MediaWords, Medium, find_by_model};
use crate::Provider;

pub(super) static IMAGE: MediaKind = MediaKind {
    name: "image",
    plural: "images",
    noun: "an image",
    format_names: "PNG, JPEG, GIF or WebP",
    formats: &FORMATS,
    max_bytes: 20 << 20,
    shrink_hint: "scale it down",
    measure: |_, _| Ok(None),
    max_tokens: |model, _| find_by_model(&TOKEN_LIMITS, model).unwrap_or(MAX_IMAGE_TOKENS),
    is_billed_as_audio: false,
    html_element: HtmlElement::Picture,
    is_fetched: true,
    providers: &Provider::ALL,
    build_message_part,
    rejection_phrases: &REJECTION_PHRASES,
    error_words: &["image", "download"],
    words: MediaWords {
        task: "Answer the question about the image.",
        unknown: "if the image does not show it",
        numbered: " [image 1], [image 2] and so on are the images that follow, in this order.",
        table: "Where a row has [image 1], [image 2] and so on, it shows an image: they follow the rows in this order. \
                Say what they show.\n",
    },
};

const FORMATS: [MediaFormat; 4] = [
    MediaFormat {
        name: "a PNG image",
        mime_type: "image/png",
        is_sent: true,
        matches: |bytes| bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
    },
    MediaFormat {
        name: "a JPEG image",
        mime_type: "image/jpeg",
        is_sent: true,
        matches: |bytes| bytes.starts_with(b"\xff\xd8\xff"),
    },
    MediaFormat {
        name: "a GIF image",
        mime_type: "image/gif",
        is_sent: true,
        matches: |bytes| matches!(bytes, [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..]),
    },
    MediaFormat {
        name: "a WebP image",
        mime_type: "image/webp",
        is_sent: true,
        matches: |bytes| {
            matches!(bytes, [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..])
        },
    },
];

// Every kind's function has this type, and other kinds have APIs without a part for them.
#[expect(clippy::unnecessary_wraps)]
fn build_message_part(provider: Provider, image: &Medium) -> Option<Json> {
    let url = &image.url;
    Some(match (provider, image.data()) {
        (Provider::Openai | Provider::Replay, _) => {
            json!({ "type": "image_url", "image_url": { "url": url } })
        }
        (Provider::OpenaiResponses, _) => {
            json!({ "type": "input_image", "detail": "auto", "image_url": url })
        }
        (Provider::Anthropic, Some((media_type, data))) => {
            let source = json!({ "type": "base64", "media_type": media_type, "data": data });
            json!({ "type": "image", "source": source })
        }
        (Provider::Anthropic, None) => {
            json!({ "type": "image", "source": { "type": "url", "url": url } })
        }
    })
}

/// Phrases in error messages that mean that a model accepts no images.
const REJECTION_PHRASES: [&str; 15] = [
    // OpenAI, Azure
    "image_url is only supported by certain models",
    "does not support image",
    "doesn't support image",
    "do not support image",
    "not support images",
    // OpenRouter
    "support image input",
    // llama.cpp
    "image input is not supported",
    // Mistral
    "image input is not enabled",
    // vLLM
    "not a multimodal model",
    "at most 0 image",
    // Ollama
    "missing data required for image input",
    // DeepSeek
    "unknown variant `image_url`",
    "vision is not supported",
    "does not support vision",
    // Groq, and other endpoints that accept only text
    "content must be a string",
];

/// Maximum number of tokens per image for models without a published rule. It exceeds every
/// published maximum.
const MAX_IMAGE_TOKENS: u64 = 50_000;
/// Returns the number of tokens for eight tiles of 512 × 512 pixels, the maximum per image. An
/// image is scaled to fit 2048 × 2048 and then to a shorter side of 768, which leaves four by two
/// tiles.
const fn compute_tile_tokens(base: u64, tile: u64) -> u64 {
    base + 8 * tile
}
/// Returns the number of tokens for 1,536 patches of 32 × 32 pixels, the maximum per image,
/// multiplied by the model's factor in hundredths.
const fn compute_patch_tokens(hundredths: u64) -> u64 {
    (1_536 * hundredths).div_ceil(100)
}
/// Maximum number of tokens per image at high detail, which `auto` may select. Entries are matched
/// against the model's name or its prefix before a hyphen; the first match applies.
///
/// Sources: `OpenAI`, "Images and vision" (<https://platform.openai.com/docs/guides/images-vision>,
/// "Calculating costs"). That page lists tiles for gpt-4o, gpt-4.1, gpt-4.5, gpt-5, o1 and o3, and
/// patches for gpt-4.1-mini, -nano, gpt-5-mini, -nano and o4-mini. For gpt-4.1 it also lists
/// patches, which use more tokens than its tiles. Anthropic, "Vision"
/// (<https://docs.anthropic.com/en/docs/build-with-claude/vision>): images are scaled down to about
/// 1,600 tokens, or to 4,784 for models with a high resolution. Newer `OpenAI` models (from gpt-5.2
/// on) use patches without a published limit, so the table does not contain them.
const TOKEN_LIMITS: [(&str, u64); 20] = [
    ("gpt-4o-mini", compute_tile_tokens(2_833, 5_667)),
    ("gpt-4o", compute_tile_tokens(85, 170)),
    ("gpt-4.1-mini", compute_patch_tokens(162)),
    ("gpt-4.1-nano", compute_patch_tokens(246)),
    ("gpt-4.1", compute_patch_tokens(100)),
    ("gpt-4-turbo", compute_tile_tokens(85, 170)),
    ("gpt-4.5", compute_tile_tokens(85, 170)),
    ("gpt-5-mini", compute_patch_tokens(162)),
    ("gpt-5-nano", compute_patch_tokens(246)),
    ("gpt-5-pro", MAX_IMAGE_TOKENS),
    ("gpt-5-codex", MAX_IMAGE_TOKENS),
    ("gpt-5", compute_tile_tokens(70, 140)),
    ("computer-use-preview", compute_tile_tokens(65, 129)),
    ("o4-mini", compute_patch_tokens(172)),
    ("o1-pro", compute_tile_tokens(75, 150)),
    ("o1", compute_tile_tokens(75, 150)),
    ("o3", compute_tile_tokens(75, 150)),
    ("chatgpt-4o", compute_tile_tokens(85, 170)),
    ("claude-3", 1_600),
    ("claude", 4_784),
];
