//! Tests of the bundled price book: every line, whose price it gives, and when it gives none.

use hqdl_spec::{BookEntry, PriceBook, PriceTable};

/// A day on which the first prices of the book apply.
const DAY: &str = "2026-11-24";
const OPENAI: &str = "https://api.openai.com/v1";

fn book() -> &'static PriceBook {
    PriceBook::bundled()
}

fn find(url: &str, model: &str) -> Result<&'static BookEntry, String> {
    book().find_price(url, model, DAY)
}

#[test]
fn every_line_is_a_valid_price_with_a_source() {
    let parsed = PriceBook::parse(include_str!("../../src/prices.csv")).unwrap();
    assert_eq!(parsed.entries, book().entries);
    assert!((60..=120).contains(&book().entries.len()), "{}", book().entries.len());
    assert_eq!(book().date.len(), DAY.len());
    for entry in &book().entries {
        let price = &entry.price;
        assert!(price.input > 0.0 && price.output > 0.0, "{entry:?}");
        assert!(price.cached_input.unwrap() <= price.input, "{entry:?}");
        assert!(price.cache_write.unwrap() >= price.input, "{entry:?}");
        assert!((0.3..=1.0).contains(&price.batch.unwrap()), "{entry:?}");
        if let Some(above) = &price.above {
            assert!(above.input > price.input && above.input_tokens > 50_000, "{entry:?}");
        }
        assert!(entry.service_tiers.iter().all(|(_, part)| (0.3..=4.0).contains(part)));
        assert!(entry.source.starts_with("https://"), "{entry:?}");
        // No name has two prices at one provider on one day.
        for name in entry.names.iter().chain([&entry.model]) {
            let same = |e: &&BookEntry| {
                e.provider == entry.provider && e.from == entry.from && e.has_name(name)
            };
            assert_eq!(book().entries.iter().filter(same).count(), 1, "{name}");
        }
    }
}

#[test]
fn a_model_has_its_names_snapshots_and_prefixes_and_no_others() {
    for (url, name, model) in [
        (OPENAI, "gpt-4o", Some("gpt-4o")),
        (OPENAI, "gpt-4o-2024-08-06", Some("gpt-4o")),
        (OPENAI, "gpt-4o-2024-05-13", Some("gpt-4o-2024-05-13")),
        (OPENAI, "openai/gpt-4o-mini", Some("gpt-4o-mini")),
        (OPENAI, "gpt-6-luna-2026-09-30", Some("gpt-6-luna")),
        (OPENAI, "gpt-5.6", Some("gpt-5.6-sol")),
        // A substring, a snapshot in another format and another provider's model have no price.
        (OPENAI, "gpt-4o-audio-preview", None),
        (OPENAI, "gpt-4o-2030-01-01", None),
        (OPENAI, "gpt-6-luna-20260930", None),
        (OPENAI, "gpt-6-luna-2026-09-3", None),
        (OPENAI, "ft:gpt-4o-mini-2024-07-18:org", None),
        (OPENAI, "my-gpt-4o", None),
        (OPENAI, "GPT-4o", None),
        (OPENAI, "anthropic/gpt-4o", None),
        (OPENAI, "claude-opus-5", None),
        ("https://api.anthropic.com/v1", "claude-haiku-4-5-20251001", Some("claude-haiku-4-5")),
        ("https://api.anthropic.com/v1", "claude-haiku-4-5-latest", None),
        ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", Some("openai/gpt-oss-120b")),
        ("https://api.groq.com/openai/v1", "groq/openai/gpt-oss-120b", Some("openai/gpt-oss-120b")),
        ("https://api.x.ai/v1", "xai/grok-4", Some("grok-4-0709")),
        (
            "https://generativelanguage.googleapis.com/v1beta/openai/",
            "models/gemini-2.5-pro",
            Some("gemini-2.5-pro"),
        ),
    ] {
        let found = find(url, name).ok().map(|e| e.model.as_str());
        assert_eq!(found, model, "{name}");
    }
}

#[test]
fn the_host_decides_and_an_unknown_one_has_no_price() {
    for url in [
        "https://API.OpenAI.com/v1",
        "https://api.openai.com:443/v1/chat/completions",
        "https://api.openai.com?x=1",
    ] {
        assert_eq!(find(url, "gpt-4o").unwrap().price.output, 10.0, "{url}");
    }
    for (url, shown) in [
        ("http://127.0.0.1:4000", "127.0.0.1:4000"),
        ("http://localhost:11434/v1", "localhost:11434"),
        ("https://openrouter.ai/api/v1", "openrouter.ai"),
        ("https://x.openai.azure.com/openai/v1", "x.openai.azure.com"),
        ("https://api.openai.com.example/v1", "api.openai.com.example"),
        ("https://api.openai.com@proxy.example/v1", "proxy.example"),
        ("https://proxy.example/api.openai.com", "proxy.example"),
        ("https://api.openai.com:8443/v1", "api.openai.com:8443"),
    ] {
        let why = format!("the price book does not have the endpoint {shown}");
        assert_eq!(find(url, "gpt-4o"), Err(why));
    }
    let why = "the price book has no model `gpt-9` of api.openai.com";
    assert_eq!(find(OPENAI, "gpt-9"), Err(why.to_owned()));
}

/// A book with three lines: one with all fields, and one whose price changes.
const SMALL: &str = "# 2026-11-24
# A comment.
provider,model,names,dated,from,input,cached_input,cache_write,output,batch,batch_cached_input,\
above_tokens,above_input,above_cached_input,above_cache_write,above_output,tiers,source
openai,all,,,,2,0.5,2.5,8,0.5,0.5,272000,4,1,5,12,flex=0.5 fast=2,https://example.org
openai,plain,,,,1,1,1,3,,,,,,,,,https://example.org
openai,plain,,,2026-12-01,2,2,2,6,,,,,,,,,https://example.org
";

/// A change that the provider has announced takes effect on its day.
#[test]
fn an_announced_price_applies_from_its_day() {
    let book = PriceBook::parse(SMALL).unwrap();
    let input = |day| book.find_price(OPENAI, "plain", day).unwrap().price.input;
    assert_eq!([input("2026-11-30"), input("2026-12-01"), input("2027-05-01")], [1.0, 2.0, 2.0]);
}

#[test]
fn rates_of_batches_tiers_and_long_prompts_are_read() {
    let book = PriceBook::parse(SMALL).unwrap();
    let entry = book.find_price(OPENAI, "all", DAY).unwrap();
    let long = &entry.price;
    assert_eq!((long.find_rates(272_000).input, long.find_rates(272_001).input), (2.0, 4.0));
    assert_eq!((long.find_rates(1).cache_write, long.find_rates(272_001).cache_write), (2.5, 5.0));
    assert_eq!(
        [entry.find_tier_factor("flex"), entry.find_tier_factor("turbo")],
        [Some(0.5), None]
    );
    // A batch has half the price, but no cheaper cached input.
    let batched = long.to_batch_prices().find_rates(1);
    assert_eq!((batched.input, batched.cached_input, batched.output), (1.0, 0.5, 4.0));
    let flex = PriceTable { service_tier: Some(0.5), ..*long };
    assert_eq!((flex.find_rates(1).input, flex.find_rates(272_001).output), (1.0, 6.0));
    // The endpoint may bill the standard tier instead, and a batch is a separate tier.
    assert_eq!(flex.find_highest_rates(1).output, 8.0);
    assert_eq!(flex.to_batch_prices(), long.to_batch_prices());
    // A batch without a listed price is not assumed to be cheaper.
    let plain = book.find_price(OPENAI, "plain", DAY).unwrap().price;
    assert_eq!(plain.to_batch_prices().find_rates(1), plain.find_rates(1));
}

#[test]
fn a_damaged_book_is_an_error() {
    for (from, to) in [
        ("# 2026-11-24\n", ""),
        (",8,0.5", ",eight,0.5"),
        (",12,flex", ",,flex"),
        ("flex=0.5", "flex"),
    ] {
        assert!(SMALL.contains(from));
        assert!(PriceBook::parse(&SMALL.replacen(from, to, 1)).is_err(), "{from}");
    }
}
