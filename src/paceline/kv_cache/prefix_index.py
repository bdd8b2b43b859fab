"""Finds blocks whose content is the KV of a given prefix.

A full block is named by a keyed BLAKE2b digest of its tokens and of the block before it, so equal names mean
equal prefixes, and nobody without the key (fresh at every start) can make two prefixes collide on purpose.
The chain of a request begins with its cache salt: requests with different salts share nothing.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 16


class PrefixIndex:
    """Names of full blocks, and which block holds each."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._block_of: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        self._parent_of: dict[bytes, bytes] = {}

    def root(self, cache_salt: str) -> bytes:
        """The name that stands before the first block."""
        return blake2b(cache_salt.encode(), key=self._key, digest_size=DIGEST_BYTES, person=b"salt").digest()

    def name(self, parent: bytes, token_ids: list[int]) -> bytes:
        """The name of a full block of these tokens after the block named `parent`."""
        content = parent + array("I", token_ids).tobytes()
        return blake2b(content, key=self._key, digest_size=DIGEST_BYTES, person=b"block").digest()

    def find(self, name: bytes) -> int | None:
        return self._block_of.get(name)

    def add(self, name: bytes, parent: bytes, block: int) -> None:
        """Let `block` be found by `name`; a block that holds the same content already keeps the name."""
        if name not in self._block_of:
            self._block_of[name] = block
            self._name_of[block] = name
            self._parent_of[name] = parent

    def forget(self, block: int) -> bool:
        """The block's content is about to change; gives whether it could be found."""
        name = self._name_of.pop(block, None)
        if name is not None:
            del self._block_of[name]
            del self._parent_of[name]
        return name is not None

    def forget_with_descendants(self, blocks: Iterable[int]) -> set[int]:
        """Forget these blocks and every block computed on top of them; returns all that were forgotten.

        A descendant whose ancestor vanished cannot be found, but would be again once an equal ancestor is
        computed anew; so it must go too. Walks the whole index: for rare failures only.
        """
        children: dict[bytes, list[bytes]] = {}
        for name, parent in self._parent_of.items():
            children.setdefault(parent, []).append(name)
        pending = [self._name_of[block] for block in blocks if block in self._name_of]
        forgotten = set()
        while pending:
            name = pending.pop()
            if name in self._block_of:
                block = self._block_of[name]
                forgotten.add(block)
                self.forget(block)
                pending.extend(children.get(name, ()))
        return forgotten

    def __len__(self) -> int:
        return len(self._block_of)
