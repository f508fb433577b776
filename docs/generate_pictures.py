"""Draws the pictures of docs/contributing/architecture.md, beside it. Run: python docs/generate_pictures.py"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent / "contributing"
INK, FAINT = "#24292f", "#6e7781"
FILLS = {"disk": "#fff1e0", "host": "#e3f0ff", "gpu": "#e4f7e4", "policy": "#f3e8ff", "plain": "#ffffff"}
FONT = "font-family='Helvetica, Arial, sans-serif'"
ARROW = (
    "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
    f"orient='auto-start-reverse'><path d='M0 0L10 5L0 10z' fill='{INK}'/></marker></defs>"
)


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    width: int
    height: int

    def side(self, name: str, shift: int = 0) -> tuple[int, int]:
        """The middle of an edge, moved along it by `shift`."""
        middle_x, middle_y = self.x + self.width // 2, self.y + self.height // 2
        return {
            "left": (self.x, middle_y + shift),
            "right": (self.x + self.width, middle_y + shift),
            "top": (middle_x + shift, self.y),
            "bottom": (middle_x + shift, self.y + self.height),
        }[name]


@dataclass(slots=True)
class Picture:
    """Shapes in the order in which they are drawn; `svg` is the whole file."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def text(self, x: int, y: int, words: str, *, size: int = 13, bold: bool = False, colour: str = INK) -> None:
        weight = " font-weight='bold'" if bold else ""
        self.shapes.append(
            f"<text x='{x}' y='{y}' {FONT} font-size='{size}'{weight} fill='{colour}' text-anchor='middle'>"
            f"{escape(words)}</text>"
        )

    def box(self, box: Box, fill: str, lines: Sequence[str], *, dashed: bool = False) -> Box:
        """A frame whose first line is its name, in bold; the lines stand at its middle."""
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self.shapes.append(
            f"<rect x='{box.x}' y='{box.y}' width='{box.width}' height='{box.height}' rx='7' "
            f"fill='{FILLS[fill]}' stroke='{INK}'{dash}/>"
        )
        top = box.y + box.height // 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            first = number == 0
            self.text(box.x + box.width // 2, top + 18 * number, line, size=13 if first else 12, bold=first)
        return box

    def frame(self, box: Box, fill: str, name: str) -> Box:
        """A room that holds other boxes, with its name along the top."""
        self.box(box, fill, [])
        self.text(box.x + box.width // 2, box.y + 21, name, size=14, bold=True)
        return box

    def slots(self, box: Box, filled: int) -> Box:
        """A row of equal slots, of which the first `filled` hold an expert."""
        step = box.width // 8
        for number in range(8):
            fill = "#8c959f" if number < filled else "#ffffff"
            self.shapes.append(
                f"<rect x='{box.x + step * number}' y='{box.y}' width='{step - 5}' height='{box.height}' rx='2' "
                f"fill='{fill}' stroke='{INK}'/>"
            )
        return box

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self.shapes.append(
            f"<path d='{path}' fill='none' stroke='{INK}' stroke-width='1.5'{dash} marker-end='url(#head)'/>"
        )

    def svg(self) -> str:
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
            f"width='{self.width}' height='{self.height}' role='img' aria-label='{escape(self.title)}'>"
        )
        paper = f"<rect width='{self.width}' height='{self.height}' fill='#ffffff'/>"
        return "\n".join([head, f"<title>{escape(self.title)}</title>", ARROW, paper, *self.shapes, "</svg>", ""])


def tiers() -> Picture:
    """Where weights lie, and what moves them: a machine without a GPU above, one with a GPU below."""
    p = Picture(920, 500, "Tiers: an expert goes from the disk into a slot of host memory, and from there to a GPU")

    p.text(460, 24, "Without a GPU", size=15, bold=True)
    disk = p.box(
        Box(20, 44, 180, 150),
        "disk",
        ["disk: the store", "a shard for each MoE layer,", "an aligned block", "for each expert"],
    )
    host = p.frame(Box(330, 44, 390, 150), "host", "host memory")
    p.box(Box(346, 78, 110, 44), "plain", ["dense weights"])
    p.box(Box(470, 78, 110, 44), "plain", ["KV cache"])
    p.box(Box(594, 78, 110, 44), "plain", ["activations"])
    p.slots(Box(346, 146, 362, 30), 6)
    p.text(525, 138, "expert cache: slots", size=12)
    kernels = p.box(Box(790, 94, 110, 50), "plain", ["kernels", "of the CPU"])
    p.arrow(disk.side("right", 42), (344, 161))
    p.text(268, 132, "demand first,", size=12)
    p.text(268, 148, "then prefetch", size=12)
    p.arrow(host.side("right"), kernels.side("left"))

    p.text(460, 234, "With a GPU", size=15, bold=True)
    disk = p.box(Box(20, 254, 130, 130), "disk", ["disk: the store", "all experts"])
    host = p.frame(Box(230, 254, 250, 130), "host", "host memory, pinned")
    p.slots(Box(248, 330, 220, 30), 8)
    p.text(355, 318, "slots: warm experts", size=12)
    p.frame(Box(580, 254, 320, 130), "gpu", "memory of the GPU")
    p.box(Box(596, 284, 100, 30), "plain", ["dense"])
    p.box(Box(704, 284, 80, 30), "plain", ["KV cache"])
    p.box(Box(792, 284, 96, 30), "plain", ["activations"])
    p.slots(Box(596, 338, 292, 30), 5)
    p.text(740, 332, "slots: hot experts", size=12)
    p.arrow((150, 345), (244, 345))
    p.text(192, 336, "read", size=12)
    p.arrow((480, 345), (592, 345))
    p.text(532, 336, "copy", size=12)

    p.text(460, 420, "The same classes decide in both, and in the simulator", size=13, bold=True)
    names = [
        ["predictor", "which come next"],
        ["prefetcher", "how many, in what order"],
        ["reader's queue", "native, by priority"],
    ]
    boxes = [p.box(Box(60 + 280 * n, 436, 190, 48), "policy", lines) for n, lines in enumerate(names)]
    p.arrow(boxes[0].side("right"), boxes[1].side("left"))
    p.arrow(boxes[1].side("right"), boxes[2].side("left"))
    return p


def token() -> Picture:
    """One token's way through the model, and through the expert cache of one layer."""
    p = Picture(920, 560, "One token: from text through every layer and the expert cache to the next token")
    names = [["chat template"], ["tokenizer"], ["embedding"], ["every layer"], ["logits"], ["sampler"], ["text stream"]]
    fills = ["plain", "plain", "plain", "host", "plain", "plain", "plain"]
    row = [
        p.box(Box(14 + 129 * n, 20, 112, 40), fill, lines)
        for n, (lines, fill) in enumerate(zip(names, fills, strict=True))
    ]
    for before, after in pairwise(row):
        p.arrow(before.side("right"), after.side("left"))
    p.arrow(
        row[5].side("bottom"), (row[5].side("bottom")[0], 84), (row[2].side("bottom")[0], 84), row[2].side("bottom")
    )
    p.text(650, 79, "the next token", size=12)

    p.frame(Box(14, 104, 892, 442), "host", "one MoE layer")
    attention = p.box(Box(34, 150, 130, 44), "plain", ["attention"])
    router = p.box(Box(214, 150, 130, 44), "plain", ["router"])
    experts = p.box(Box(394, 150, 180, 44), "gpu", ["experts.run", "all that a model sees"])
    total = p.box(Box(724, 150, 160, 44), "plain", ["+ hidden state"])
    p.arrow(attention.side("right"), router.side("left"))
    p.arrow(router.side("right"), experts.side("left"))
    p.text(369, 143, "ids, weights", size=11, colour=FAINT)
    p.arrow(experts.side("right"), total.side("left"))

    p.box(Box(394, 218, 490, 312), "plain", [], dashed=True)
    p.arrow(experts.side("bottom"), (484, 240))
    table = p.box(Box(414, 242, 140, 50), "policy", ["table", "what is resident?"])
    now = p.box(Box(414, 384, 140, 50), "gpu", ["compute", "those that are there"])
    queue = p.box(Box(626, 242, 120, 50), "disk", ["demand reads", "of those that miss"])
    later = p.box(Box(606, 384, 160, 50), "gpu", ["compute", "the others as they land"])
    summed = p.box(Box(500, 466, 280, 46), "gpu", ["sum in the order of the routing", "so no arrival changes a bit"])
    p.arrow(table.side("bottom"), now.side("top"))
    p.text(448, 340, "hits", size=12)
    p.arrow(table.side("right"), queue.side("left"))
    p.text(590, 260, "misses", size=12)
    p.arrow(queue.side("bottom"), later.side("top"))
    p.arrow(now.side("bottom"), (now.side("bottom")[0], 489), summed.side("left"))
    p.arrow(later.side("bottom"), (later.side("bottom")[0], 466))
    p.arrow(summed.side("right"), (870, 489), (870, 194))
    p.slots(Box(636, 326, 104, 22), 5)
    p.text(800, 341, "slots of the cache", size=11, colour=FAINT)

    seen = p.box(Box(34, 242, 150, 50), "policy", ["eviction policy", "sees every routing"])
    guess = p.box(Box(214, 242, 150, 50), "policy", ["predictor", "next layer's router"])
    ahead = p.box(Box(214, 384, 150, 50), "disk", ["prefetches", "behind the demand"])
    p.arrow(router.side("bottom", -30), (router.side("bottom", -30)[0], 220), (109, 220), seen.side("top"))
    p.arrow(router.side("bottom", 10), guess.side("top"))
    p.arrow(guess.side("bottom"), ahead.side("top"), dashed=True)
    p.arrow(seen.side("bottom"), (109, 409), ahead.side("left"), dashed=True)
    p.text(126, 455, "which expert leaves,", size=12)
    p.text(126, 471, "where no slot is free", size=12)
    return p


PICTURES = {"tiers.svg": tiers, "token.svg": token}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw().svg(), encoding="utf-8")
