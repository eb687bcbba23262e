#!/usr/bin/env python3
"""Writes the price book, crates/hqdl-spec/src/prices.csv, from the data of the PyPI package
genai-prices (MIT licence). Only figures, names and addresses are taken.

    pip download --no-deps genai-prices
    python3 scripts/prices/update.py genai_prices-*.whl

MODELS below selects what the book has. A selected model that the package no longer has is an
error: remove it here, or give its new name.
"""

import csv
import datetime
import pathlib
import re
import sys
import zipfile
from decimal import ROUND_UP, Decimal

BOOK = pathlib.Path(__file__).parents[2] / "crates/hqdl-spec/src/prices.csv"

# Models by provider. After `=` are other names the provider gives the model.
MODELS = {
    "openai": """
        gpt-3.5-turbo gpt-4-turbo gpt-4o gpt-4o-2024-05-13 gpt-4o-mini gpt-4.1 gpt-4.1-mini
        gpt-4.1-nano o1 o3 o3-mini o4-mini gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.4
        gpt-5.4-mini gpt-5.4-nano gpt-5.5 gpt-5.6-luna gpt-5.6-terra gpt-5.6-sol=gpt-5.6
        gpt-6-luna gpt-6-sol gpt-6-astra gpt-6.1-terra gpt-6.1-sol gpt-audio gpt-audio-mini""",
    "anthropic": """
        claude-3-haiku claude-3-5-haiku-latest=claude-3-5-haiku claude-haiku-4-5 claude-haiku-5-5
        claude-sonnet-4-0=claude-sonnet-4-20250514 claude-sonnet-4-5 claude-sonnet-4-6
        claude-sonnet-5 claude-sonnet-5-5 claude-opus-4-1 claude-opus-4-5 claude-opus-4-6
        claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-opus-5-5 claude-fable-5
        claude-fable-5-1 claude-fable-5-2""",
    "google": """
        gemini-2.5-flash-lite gemini-2.5-flash gemini-2.5-pro gemini-3-flash-preview
        gemini-3.1-flash-lite gemini-3.1-pro-preview gemini-3.5-flash-lite gemini-3.5-flash
        gemini-3.6-flash gemini-3.7-flash gemini-3.8-flash gemini-4-argon""",
    "deepseek": "deepseek-flash deepseek-v4-flash deepseek-v4-pro",
    "mistral": """
        ministral-3b-2512 ministral-8b-2512 ministral-14b-2512 mistral-small-2603
        mistral-medium-3-1=mistral-medium-2508 mistral-medium-3-5=mistral-medium-2604
        mistral-large-2512 mistral-large-4 codestral-2508""",
    "groq": """
        llama-3.1-8b-instant llama-3.3-70b-versatile openai/gpt-oss-20b openai/gpt-oss-120b
        meta-llama/llama-4-scout-17b-16e-instruct meta-llama/llama-4-maverick-17b-128e-instruct
        qwen/qwen3-32b qwen/qwen3.8-27b moonshotai/kimi-k2-instruct""",
    "x-ai": """
        grok-3 grok-3-mini grok-4-0709=grok-4 grok-4.20 grok-4.3 grok-4.5 grok-4.6 grok-4.7""",
    "together": """
        meta-llama/Llama-3.3-70B-Instruct-Turbo meta-llama/Llama-4-Scout-17B-16E-Instruct
        meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8 openai/gpt-oss-120b
        deepseek-ai/DeepSeek-V4.1-Flash deepseek-ai/DeepSeek-V4-Pro-0813 moonshotai/Kimi-K3
        Qwen/Qwen3.8-Flash zai-org/GLM-5.3""",
    "cerebras": "gpt-oss-120b qwen-3.8-27b",
}
COLUMNS = [
    "provider", "model", "names", "dated", "from", "input", "cached_input", "cache_write",
    "audio_input", "output", "batch", "batch_cached_input", "above_tokens", "above_input",
    "above_cached_input", "above_cache_write", "above_output", "tiers", "source",
]
KINDS = {
    "input": "input_mtok", "cached_input": "cache_read_mtok",
    "cache_write": "cache_write_mtok", "audio_input": "input_audio_mtok", "output": "output_mtok",
}
TIERS = ["flex", "priority", "fast"]


class Names(dict):
    """Stands for the package's types: each call is a dictionary of its arguments."""

    def __missing__(self, name):
        if name in ("str", "list") or name.startswith("__"):
            raise KeyError(name)
        return lambda *args, **fields: {"type": name, **fields}


def load(text):
    """Returns the providers in the text of data.py, by id."""
    text = re.sub(r"^(from|import) .*$", "", text, flags=re.M)
    names = Names(datetime=datetime, Decimal=Decimal)
    exec(text, {}, names)
    return {provider["id"]: provider for provider in names["providers"]}


def clauses(match):
    for part in match.get("or_") or [match]:
        yield part["type"].removeprefix("Clause"), next(v for k, v in part.items() if k != "type")


def matched(provider, model, also):
    """Returns the names of a model, and the form of the date its snapshots end in."""
    names, dated = {also} - {""}, ""
    ident = model["id"]
    for kind, text in clauses(model["match"]):
        snapshot = re.escape(ident) + r"(-\d{4}-\d{2}-\d{2}|-\d{8})?"
        if kind == "Equals" and re.fullmatch(snapshot, text):
            names.add(text)
        elif kind == "Regex" and text.replace("\\.", ".").startswith("^" + ident):
            forms = {r"\d{4}-\d{2}-\d{2}$": "-YYYY-MM-DD", r"\d{8}$": "-YYYYMMDD"}
            dated = dated or next((form for end, form in forms.items() if text.endswith(end)), "")
        elif kind == "StartsWith" and text.rstrip("-") in (ident, also):
            names.add(text.rstrip("-"))
            form = {"openai": "-YYYY-MM-DD", "anthropic": "-YYYYMMDD"}
            dated = dated or form.get(provider, "")
        elif kind == "And" and any(part.get("starts_with") == ident for part in text):
            names.add(ident)
    if not names:
        raise SystemExit(f"{provider}: no name of {ident} is known")
    first = ident if ident in names else sorted(names)[0]
    return first, " ".join(sorted(names - {first})), dated


def rates(prices):
    """Returns the rates below and above the limit of long prompts, and the limit."""
    low, high, limit = {}, {}, None
    for kind, field in KINDS.items():
        value = prices.get(field)
        if isinstance(value, dict):
            (tier,) = value["tiers"]
            limit, low[kind], high[kind] = tier["start"], value["base"], tier["price"]
        elif value is not None:
            low[kind] = value
    for kind in low if high else ():
        high.setdefault(kind, low[kind])
    return low, high, limit


def starts(prices, today):
    """Returns prices with the day each begins: the one that applies now, and later ones.

    Of prices by the time of day the highest is taken: a run may be at any time.
    """
    if isinstance(prices, dict):
        return [("", prices)]
    hourly = [p["prices"] for p in prices if "start_time" in (p.get("constraint") or {})]
    if hourly:
        return [("", max(hourly, key=lambda p: p["output_mtok"]))]
    dated = [((p.get("constraint") or {}).get("start_date"), p["prices"]) for p in prices]
    now = [p for day, p in dated if day is None or day <= today][-1]
    return [("", now)] + [(str(day), p) for day, p in dated if day is not None and day > today]


def variant(model, key, name, day):
    """Returns the prices of a variant, as of a day."""
    found = [
        v for v in model.get("price_variants") or []
        if v["when"] == {key: name}
        and str((v.get("constraint") or {}).get("start_date", "")) <= day
    ]
    last = max(found, key=lambda v: str((v.get("constraint") or {}).get("start_date", "")), default=None)
    return last and last["prices"]


def factor(variant_rates, standard):
    """Returns the part of the standard rates that a variant bills, at the most."""
    parts = [variant_rates[kind] / standard[kind] for kind in ("input", "output")]
    return max(parts).quantize(Decimal("0.000001"), ROUND_UP).normalize()


def row(provider, model, also, start, prices, today):
    low, high, limit = rates(prices)
    # A rate that is not listed is that of other input.
    for part in filter(None, (low, high)):
        part.setdefault("cached_input", part["input"])
        part.setdefault("cache_write", part["input"])
    day = start or str(today)
    batch = variant(model, "processing", "batch", day)
    part, cached = None, None
    if batch:
        batch_low, _, _ = rates({**prices, **batch})
        part = factor(batch_low, low)
        billed = batch_low.get("cached_input", batch_low["input"])
        # Published rates are rounded.
        if billed - low["cached_input"] * part > Decimal("0.01"):
            cached = billed
    tiers = []
    for tier in TIERS:
        prices_of_tier = variant(model, "service_tier", tier, day)
        if prices_of_tier:
            tiers.append(f"{tier}={factor(rates({**prices, **prices_of_tier})[0], low):f}")
    name, names, dated = matched(provider["id"], model, also)
    values = {
        "provider": provider["id"], "model": name, "names": names, "dated": dated, "from": start,
        **low, "batch": part, "batch_cached_input": cached, "above_tokens": limit,
        **{f"above_{kind}": value for kind, value in high.items()},
        "tiers": " ".join(tiers), "source": provider["pricing_urls"][0],
    }
    plain = lambda v: f"{v.normalize():f}" if isinstance(v, Decimal) else v
    return {column: plain(values.get(column)) for column in COLUMNS}


def main():
    wheel = pathlib.Path(sys.argv[1])
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as package:
        providers = load(package.read("genai_prices/data.py").decode())
    today = datetime.datetime.now(datetime.timezone.utc).date()
    rows = []
    for ident, wanted in MODELS.items():
        provider = providers[ident]
        models = {model["id"]: model for model in provider["models"]}
        for word in wanted.split():
            name, _, also = word.partition("=")
            model = models[name]
            rows += [row(provider, model, also, *start, today) for start in starts(model["prices"], today)]
    with BOOK.open("w", newline="") as out:
        out.write(f"# {today}\n")
        out.write(f"# Facts from genai-prices {version}; written by scripts/prices/update.py.\n")
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{BOOK}: {len(rows)} rows")


if __name__ == "__main__":
    main()
