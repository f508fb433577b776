"""What the plan of a family calls the tensors of a checkpoint, whatever prefix the checkpoint gives them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from moeinf.types import TensorPlan

_BESIDE = "model."
_MOST_PARTS = 8  # of a prefix: no real one has as many, and names are a stranger's


def plan_name(name: str, plan: TensorPlan) -> str:
    """A name as the plan has it, of a tensor that is stored under one of the names that the plan knows."""
    for pattern, known in plan.renamed.items():
        renamed, count = re.subn(pattern, known, name, count=1)
        if count:
            return renamed
    return name


class Names:
    """The names of one checkpoint.

    The prefix of a language model's tensors is not what config.json implies where the model was cut out of one that
    also sees, put into one, pruned or renamed. So it is taken from the tensors: of all prefixes behind which the plan's
    names occur, the one with most of them.
    """

    def __init__(self, stored: Collection[str], plan: TensorPlan) -> None:
        self._plan = plan
        self._head = (plan.own_head or "").removesuffix("weight")
        self.wanted = _prefix(plan, self._head)  # of the plan's names, but the head's
        votes = self._votes([plan_name(name, plan) for name in stored])
        self._first = Counter(name.partition(".")[0] for name in stored).most_common(1)
        self.found = max(votes, key=lambda prefix: (votes[prefix], prefix == self.wanted), default=self.wanted)
        self._known_prefix = bool(votes)
        parts = self._head.split(".")[:-1]
        self._module = f"{parts[-1]}." if parts else ""
        self._leads = {"", *_beginnings(self.found), *_beginnings(self.wanted)}  # before the head's module
        left_out = (*plan.ignored, *plan.follows, *plan.ahead)
        self._left_out = re.compile("|".join(f"(?:{pattern})" for pattern in left_out) or "(?!)")

    def __call__(self, stored: str) -> str:
        name = plan_name(stored, self._plan)
        lead, middle, rest = name.rpartition(self._module) if self._module else ("", "", "")
        if middle and lead in self._leads:
            return self._head + rest
        if name.startswith(self.wanted) and (self.found == self.wanted or self.wanted.startswith(self.found)):
            return name
        if self._known(name):
            return name
        if self._known(beside := self._other_models(name)):
            return beside
        return self.wanted + name.removeprefix(self.found) if name.startswith(self.found) else name

    @property
    def remark(self) -> str:
        """What to know about prefixes where a tensor is missing; "" where tensors have the wanted one."""
        if self.found != self.wanted:
            found = f"begin with {self.found!r}" if self.found else "have no prefix"
            return f" (its tensors {found}, which was read as {self.wanted!r})"
        if self._known_prefix or not self._first:
            return ""
        return f" (looked for behind {self.wanted!r}; most of its tensors begin with {self._first[0][0] + '.'!r})"

    def _votes(self, names: Collection[str]) -> Counter[str]:
        endings = {name.removeprefix(self.wanted) for name in self._plan.dense if name.startswith(self.wanted)}
        votes = Counter[str]()
        for name in names:
            if ".experts." in name:  # most names of a checkpoint, and none of these
                continue
            prefix = next((front for front, ending in _cuts(name) if ending in endings), None)
            if prefix is not None:
                votes[prefix] += 1
        return votes

    @staticmethod
    def _other_models(name: str) -> str:
        """Tensors of the models beside the language model are called with `model.` in front, or without: the other."""
        return name.removeprefix(_BESIDE) if name.startswith(_BESIDE) else _BESIDE + name

    def _known(self, name: str) -> bool:
        plan = self._plan
        named = name in plan.dense or name in plan.copies or name in plan.vision
        return named or self._left_out.fullmatch(name) is not None


def _beginnings(prefix: str) -> list[str]:
    dots = (at for at, letter in enumerate(prefix) if letter == ".")
    return [prefix[: at + 1] for at in islice(dots, _MOST_PARTS)]


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """A name cut at each of its dots, the shortest prefix first, which may be empty."""
    return ((front, name[len(front) :]) for front in ("", *_beginnings(name)))


def _prefix(plan: TensorPlan, head: str) -> str:
    """What all names of the plan begin with, but those of the head."""
    names = [name for name in plan.dense if not head or not name.startswith(head)]
    first, last = min(names), max(names)  # what these have in common, all between them have
    return max(part for part in ("", *_beginnings(first)) if last.startswith(part))
