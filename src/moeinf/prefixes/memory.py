"""Blocks in host memory, within a budget; the least recently used ones leave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from moeinf.prefixes.block import Block
from moeinf.types import ByteArray


class MemoryTier:
    """Blocks by name, and by the block that they follow.

    Of a way that is used, the first block counts as used last: so a block leaves before the one that it follows.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = self.most_bytes = budget_bytes  # what it may take now, and at most
        self.used_bytes = 0
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()  # least recently used first
        self._children: dict[bytes, list[Block]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._blocks

    def children(self, parent: bytes) -> Sequence[Block]:
        """The blocks that follow one."""
        return self._children.get(parent, ())

    def touch(self, way: Iterable[bytes]) -> None:
        """The named blocks, each behind the one before it, are used now. Those that are not here are passed over."""
        for digest in reversed(list(way)):
            if digest in self._blocks:
                self._blocks.move_to_end(digest)

    def make_room(self, num_bytes: int, keep: Collection[bytes]) -> bool:
        """Evicts until so many bytes fit; False where nothing is left but `keep` and what is pending."""
        if num_bytes > self.budget_bytes:
            return False
        while self.used_bytes + num_bytes > self.budget_bytes:
            victim = next((b for b in self._blocks.values() if b.digest not in keep and not b.pending), None)
            if victim is None:
                return False
            self.remove(victim)
        return True

    def resize(self, budget_bytes: int) -> int:
        """Sets the budget, and returns how many bytes it gave back for that: what is pending may stay beyond it."""
        before = self.used_bytes
        self.budget_bytes = max(0, min(self.most_bytes, budget_bytes))
        self.make_room(0, ())
        return before - self.used_bytes

    def lend(self, num_bytes: int) -> int:
        """Takes so many bytes from the budget, or nothing where it has fewer, until they are given again, with a
        negative number; how many it were."""
        lent = num_bytes if num_bytes <= self.budget_bytes else 0
        if lent > 0:
            self.make_room(lent, ())
            lent = max(0, min(lent, self.budget_bytes - self.used_bytes))  # what is pending stays
        self.budget_bytes, self.most_bytes = self.budget_bytes - lent, self.most_bytes - lent
        return lent

    def add(self, block: Block) -> None:
        """Takes a block for which there is room."""
        assert self.used_bytes + block.num_bytes <= self.budget_bytes and block.digest not in self._blocks
        with self._empty_if_given_up():
            self._blocks[block.digest] = block
            self._children.setdefault(block.parent, []).append(block)
            self.used_bytes += block.num_bytes

    def set_state(self, block: Block, state: ByteArray | None) -> None:
        """Gives a block a recurrent state, for which there is room, or takes it away."""
        with self._empty_if_given_up():
            before = block.num_bytes
            block.state = state
            self.used_bytes += block.num_bytes - before

    def remove(self, block: Block) -> None:
        with self._empty_if_given_up():
            del self._blocks[block.digest]
            siblings = self._children[block.parent]
            siblings.remove(block)
            if not siblings:
                del self._children[block.parent]
            self.used_bytes -= block.num_bytes

    def clear(self) -> None:
        self._blocks, self._children, self.used_bytes = OrderedDict(), {}, 0

    @contextmanager
    def _empty_if_given_up(self) -> Iterator[None]:
        """A change that ends half-way leaves nothing: who asks finds fewer blocks, never wrong ones."""
        try:
            yield
        except BaseException:
            self.clear()
            raise
