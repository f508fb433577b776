"""What `moeinf doctor` and `moeinf fit` print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from moeinf.bench.forecast.checkup import Finding
from moeinf.engine.memory.plan import PROCESS_BYTES
from moeinf.engine.memory.plan_notes import activations_text, sequence_text
from moeinf.engine.speed.rates import Rates
from moeinf.engine.speed.rates_file import rates_json
from moeinf.forecast.cards import CardForecast
from moeinf.forecast.forecast import Forecast
from moeinf.forecast.products import MAIN_KINDS
from moeinf.forecast.subject import Subject
from moeinf.terminal.screen import section
from moeinf.text.quantities import binary_size_text, count_text, size_text
from moeinf.types import FORMAT_BLOCKS, Format, MoeShape

PUBLISHED: Final = "from published rates, not measured"  # of a card


def doctor_lines(findings: Sequence[Finding], rates: Rates) -> list[str]:
    rows = [(each.name, each.text) for each in findings]
    lines = section("Machine", rows) + section("Rates", _rate_rows(rates))
    faults = [each for each in findings if each.remedy]
    lines += section("To mend", [(each.name, each.remedy) for each in faults]) if faults else ["  Nothing to mend.", ""]
    return lines[:-1]


def _rate_rows(rates: Rates) -> list[tuple[str, str]]:
    made = rates.conditions
    return [
        ("measured", f"{made.measured}, {made.threads} threads, {made.isa}"),
        ("disk", _disk_rates_text(rates.disk)),
        *((f"disk of {folder}", _disk_rates_text(each)) for folder, each in rates.also.items()),
        ("memory", f"{size_text(rates.memory)}/s" if rates.memory else "too little is free to tell"),
        ("decode", _shares_text(rates)),
        *((f"{format} weights", _products_text(rates, format)) for format in ("bf16", "q4_k")),
        ("a layer", f"{rates.layer_s * 1e6:.0f} us beside its weights, {rates.streamed_layer_s * 1e6:.0f} streamed"),
    ]


def _disk_rates_text(rates: Mapping[int, float]) -> str:
    return ", ".join(f"{size_text(rate)}/s at {binary_size_text(size)}" for size, rate in rates.items())


def _shares_text(rates: Rates) -> str:
    """How near products of one row come to a plain read of the memory, by format."""
    shares = {kind.format: reading.share for kind in MAIN_KINDS if (reading := rates.reading_of(kind)) is not None}
    if not shares:
        return "too little is free to tell"
    return f"{', '.join(f'{format} {share:.0%}' for format, share in shares.items())} of the memory's rate"


def _products_text(rates: Rates, format: Format) -> str:
    """Bytes of weights that decoding uses, and multiplications and additions of prefill."""
    products, (weights, num_bytes) = rates.experts[format], FORMAT_BLOCKS[format]
    decode = num_bytes / weights / products.seconds[0]
    prefill = 2 * products.rows[-1] / products.seconds[-1]
    return f"{size_text(decode)}/s in decode, {prefill / 1e9:.0f} GFLOP/s in prefill"


def doctor_json(findings: Sequence[Finding], rates: Rates) -> str:
    value = {"findings": [each.to_json() for each in findings], "rates": rates_json(rates)}
    return json.dumps(value, indent=2)


def fit_lines(subject: Subject, forecast: Forecast, free_bytes: int, on_card: CardForecast | None = None) -> list[str]:
    """Memory by part, what is resident, and how fast that will be. free_bytes: of the store's disk."""
    info, moe = forecast.outline.manifest.info, forecast.moe
    active = "" if moe.dense else f" ({count_text(info.active_params)} active)"
    experts = ("experts", f"{moe.num_layers} layers of {moe.experts_text}, {moe.top_k} a token")
    lines = section(
        subject.name,
        [
            ("parameters", f"{count_text(info.num_params)}{active}"),
            ("on disk", _disk_text(subject, free_bytes)),
            ("layers", f"{moe.num_layers}, each with one MLP: every token uses all of it") if moe.dense else experts,
        ],
    )
    lines += section("Memory", [*memory_rows(forecast), ("in all", size_text(process_bytes(forecast)))])
    hits, made = forecast.hits, forecast.rates.conditions
    lines += section(
        "Speed on the CPU (forecast)" if on_card is not None else "Speed (forecast)",
        [
            ("resident", f"{forecast.resident_share:.0%} of the {moe.kind}"),
            ("hit rate", f"{hits.hit_rate:.0%} ({hits.source})"),
            ("read", f"{size_text(forecast.decode.read_bytes)} a token"),
            ("decode", f"{rate_text(forecast.decode.tokens_per_s)} behind a prompt of {forecast.prefill.tokens}"),
            ("prefill", f"{rate_text(forecast.prefill.tokens_per_s)} of a prompt of {forecast.prefill.tokens}"),
            ("rates", f"of {made.measured[:10]}, {made.threads} threads, {made.isa} (`moeinf doctor`)"),
        ],
    )
    if on_card is not None:
        lines += section(f"Speed on {on_card.card.name} (forecast)", _card_rows(on_card, forecast.moe))
    notes = [*forecast.notes, *_want_of_disk(subject, free_bytes)]
    return [*lines, *(f"  note: {note}" for note in notes)] if notes else lines[:-1]


def _card_rows(on_card: CardForecast, moe: MoeShape) -> list[tuple[str, str]]:
    card, decode = on_card.card, on_card.decode
    speed = "not foretold: the machine's memory has no room for the experts behind the card"
    if decode is not None:
        speed = f"{rate_text(decode.tokens_per_s)}, of which {decode.read_bytes / 1e6:.0f} MB a token over the link"
    return [
        ("memory", f"{card.memory_gib} GiB, {card.memory_gb_per_s} GB/s, PCIe {card.generation} x{card.lanes}"),
        ("resident", f"{on_card.resident_share(moe):.0%} of the {moe.kind}"),
        ("decode", speed),
        ("rates", f"{PUBLISHED}: `moeinf bench` measures"),
    ]


def _disk_text(subject: Subject, free_bytes: int) -> str:
    size = size_text(subject.store_bytes)
    return size if subject.stored else f"{size} once pulled, {size_text(free_bytes)} free"


def _want_of_disk(subject: Subject, free_bytes: int) -> list[str]:
    if subject.stored or subject.store_bytes <= free_bytes:
        return []
    return ["the disk has no room for it: free some, set MOEINF_HOME to a larger one, or store fewer bits with --quant"]


def memory_rows(forecast: Forecast) -> list[tuple[str, str]]:
    plan = forecast.plan
    rows = [
        ("dense weights", size_text(plan.dense_bytes)),
        ("KV cache", sequence_text(plan)),
        ("activations", activations_text(plan)),
        (
            forecast.moe.kind,
            f"{size_text(plan.cache_bytes)}: {plan.num_slots} of {forecast.moe.total_experts}, {_slots_text(forecast)}",
        ),
        ("program", size_text(plan.program_bytes + PROCESS_BYTES)),
    ]
    return [*rows, ("prefixes", size_text(plan.prefix_bytes))] if plan.prefix_bytes else rows


def _slots_text(forecast: Forecast) -> str:
    """The sizes of the slots, and what memory was too short for."""
    sizes, wanted = forecast.plan.sizes.class_bytes, forecast.outline.footprint.sizes.class_bytes
    text = f"{binary_size_text(sizes[0])} each"
    if len(sizes) > 1:
        text = "in slots of " + " or ".join(binary_size_text(num_bytes) for num_bytes in sizes)
    if len(sizes) == len(wanted) or forecast.plan.slices is not None:
        return text
    return f"{text} ({len(sizes)} of {len(wanted)} sizes: more would leave some layers fewer experts)"


def process_bytes(forecast: Forecast) -> int:
    """The memory of the whole process, as --ram counts it."""
    return forecast.plan.total_bytes + forecast.plan.program_bytes + PROCESS_BYTES


def rate_text(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f} tokens/s" if tokens_per_s >= 20 else f"{tokens_per_s:.2g} tokens/s"


def plan_line(forecast: Forecast) -> str:
    """The choice and its reasons in one line."""
    resident = f"{forecast.resident_share:.0%} of the {forecast.moe.kind} resident"
    return (
        f"{size_text(process_bytes(forecast))} of memory, {resident}, context {forecast.plan.context}: about "
        f"{rate_text(forecast.decode.tokens_per_s)}, prompts at {rate_text(forecast.prefill.tokens_per_s)}"
    )


def fit_json(subject: Subject, forecast: Forecast, free_bytes: int, on_card: CardForecast | None = None) -> str:
    plan, hits = forecast.plan, forecast.hits
    card = {} if on_card is None else {"card": _card_json(on_card)}
    return json.dumps(
        {
            "name": subject.name,
            "stored": subject.stored,
            "store_bytes": subject.store_bytes,
            "disk_free_bytes": free_bytes,
            "memory": {
                "dense_bytes": plan.dense_bytes,
                "kv_bytes": plan.kv_bytes,
                "activation_bytes": plan.activation_bytes,
                "expert_bytes": plan.cache_bytes,
                "prefix_bytes": plan.prefix_bytes,
                "program_bytes": plan.program_bytes + PROCESS_BYTES,
                "total_bytes": process_bytes(forecast),
            },
            "context": plan.context,
            "prefill_chunk": plan.prefill_chunk,
            "experts": plan.num_slots,
            "experts_total": forecast.moe.total_experts,
            "expert_hit_rate": round(hits.hit_rate, 4),
            "hit_rate_source": hits.source,
            "bytes_per_token": round(forecast.decode.read_bytes),
            "prompt_tokens": forecast.prefill.tokens,
            "decode_tokens_per_s": round(forecast.decode.tokens_per_s, 3),
            "prefill_tokens_per_s": round(forecast.prefill.tokens_per_s, 3),
            "notes": [*forecast.notes, *_want_of_disk(subject, free_bytes)],
            "rates_measured": forecast.rates.conditions.measured,
        }
        | card,
        indent=2,
    )


def _card_json(on_card: CardForecast) -> dict[str, object]:
    card, decode = on_card.card, on_card.decode
    return {
        "name": card.name,
        "memory_bytes": card.memory_gib << 30,
        "experts": on_card.plan.num_slots,
        "experts_in_host_memory": on_card.plan.host_slots,
        "decode_tokens_per_s": None if decode is None else round(decode.tokens_per_s, 3),
        "link_bytes_per_token": None if decode is None else round(decode.read_bytes),
        "rates": PUBLISHED,
    }
