"""Which blocks hold the beginnings of which sequences: a tree, whose nodes are blocks.

A node's key is the tokens themselves, not a hash of them, so that nothing can be taken for another.
The idea of a radix tree over cached prefixes is that of Zheng et al. 2023 (SGLang), section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """`block` holds the keys and values of `tokens` behind the tokens of its ancestors.

    A block that is not full has no children. A root holds no tokens.
    """

    tokens: Tokens = ()
    block: int = -1
    parent: Node | None = None
    children: dict[Tokens, Node] = field(default_factory=dict)


class Prefixes:
    """The known beginnings, in trees by `kind`: what besides the tokens before it a key depends on."""

    def __init__(self, size: int) -> None:
        self.size = size  # tokens of a full block
        self.roots: defaultdict[Hashable, Node] = defaultdict(Node)
        self._of: dict[int, Node] = {}

    def known(self, block: int) -> int:
        """How many tokens, from its first on, the block is known to hold."""
        return len(self._of[block].tokens) if block in self._of else 0

    def match(self, kind: Hashable, ids: Sequence[int]) -> tuple[list[Node], int]:
        """The path of nodes that begins as `ids` do, and how many tokens they have in common.

        Of the last node that may be a part.
        """
        node, path, n = self.roots[kind], list[Node](), 0
        while n < len(ids):
            ahead = tuple(ids[n : n + self.size])
            nearest = node.children.get(ahead) or max(
                node.children.values(), key=lambda child: common(child.tokens, ahead), default=None
            )
            shared = common(nearest.tokens, ahead) if nearest else 0
            if nearest is None or shared == 0:
                break
            node, n = nearest, n + shared
            path.append(node)
            if shared < self.size:
                break
        return path, n

    def add(self, parent: Node, tokens: Tokens, block: int) -> Node:
        """The node of these tokens: one that there is, of whatever block, or else a new one of `block`.

        Tokens of a part of a block are known already where a node begins with them. What was known of
        the block before is its beginning, so that the new node takes its place.
        """
        for child in _beginning_with(parent, tokens, self.size):
            return child
        self.forget(block)
        node = parent.children[tokens] = self._of[block] = Node(tokens, block, parent)
        return node

    def forget(self, block: int) -> None:
        """The block, whose node has no children, holds nothing known any more."""
        node = self._of.pop(block, None)
        if node is not None and node.parent is not None:
            del node.parent.children[node.tokens]


def _beginning_with(parent: Node, tokens: Tokens, size: int) -> list[Node]:
    """The children that begin with these tokens."""
    if len(tokens) == size:
        return [parent.children[tokens]] if tokens in parent.children else []
    return [c for c in parent.children.values() if c.tokens[: len(tokens)] == tokens]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
