"""What a person is shown of the forms of a model."""

from __future__ import annotations

from moeinf.forecast.form_choice import Choice, FormForecast, has_room
from moeinf.forecast.format_quality import divergence_of, divergence_text, measured
from moeinf.forecast.known_sizes import nearest_mixture
from moeinf.store.naming.catalogue import form_name
from moeinf.terminal.screen import table
from moeinf.text.quantities import count_text, eta_text, size_text


def form_lines(choice: Choice, verb: str) -> list[str]:
    """A row for each form, the best first, and what is taken. verb: of the command that would take another."""
    timed = choice.found.bytes_per_s > 0
    head = [
        "",
        "TAG",
        "DOWNLOAD",
        *(["TIME"] if timed else []),
        "DISK",
        "BITS",
        "KL",
        "IN MEMORY",
        "SPEED HERE",
        "FROM",
    ]
    grid = [head] + [_row(choice, row, timed=timed) for row in choice.rows]
    other = next((row for row in choice.rows if row is not choice.taken and not row.fault), None)
    return [
        f"forms of {choice.name}, and what they would be here, where {size_text(choice.free_bytes)} of disk are free:",
        *table(grid, 2),
        *_of_quality(choice),
        *(f"note: {line}" for line in (*choice.found.notes, *_of_dense(choice))),
        choice.line,
        *([f"`moeinf {verb} {form_name(choice.name, other.form.tag)}` takes another"] if other else []),
    ]


def _of_quality(choice: Choice) -> list[str]:
    """What the column KL says; nothing where it is empty."""
    if not any(divergence_of(row.form.tag) for row in choice.rows):
        return []
    return [
        f"KL: about how far predictions are from those of 16 bits, in nats a token, as measured on "
        f"{measured().measured_on}"
    ]


def _of_dense(choice: Choice) -> list[str]:
    """What a model without experts is, and the mixture that is about as large."""
    if not choice.model.dense:
        return []
    line = f"{choice.name} has no experts: every token uses all of it"
    near = nearest_mixture(min(row.form.store_bytes for row in choice.rows))
    if near is not None:
        active = count_text(near[1].active_params)
        line += f"; {near[0].name} is about as large, and a token uses {active} weights of it"
    return [line]


def _row(choice: Choice, row: FormForecast, *, timed: bool) -> list[str]:
    form = row.form
    memory, speed = "", row.fault
    if row.forecast is not None:
        memory = f"{row.forecast.resident_share:.0%}"
        speed = f"{row.tokens_per_s:.2g} tokens/s" if row.tokens_per_s < 20 else f"{row.tokens_per_s:.0f} tokens/s"
    if not has_room(form, choice.free_bytes):
        speed = f"{speed}, but the disk is too full".removeprefix(", but ")
    time = [eta_text(form.download_bytes / choice.found.bytes_per_s)] if timed else []
    mark = ">" if row is choice.taken else ""
    sizes = [
        size_text(form.download_bytes),
        *time,
        size_text(form.store_bytes),
        f"{form.bits:.1f}",
        divergence_text(form.tag),
    ]
    return [mark, form.tag, *sizes, memory, speed, form.where]
