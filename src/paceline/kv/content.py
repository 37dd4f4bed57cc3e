"""Names of contents: what a block holds, in few bytes, the same in every process.

The key of a block is a hash chained over everything its K/V depend on: the model (`identity`), the namespace, and all
tokens from the start of the sequence to the block's end. Equal keys mean equal K/V, whoever computed them and when.
"""

from __future__ import annotations

from hashlib import blake2b

KEY_BYTES = 20  # finding two contents with one key takes 2^80 tries


def root_key(identity: bytes, namespace: bytes) -> bytes:
    """What every chain of a namespace starts from."""
    return blake2b(len(identity).to_bytes(4, "little") + identity + namespace, digest_size=KEY_BYTES).digest()


def extend_keys(keys: list[bytes], before: bytes, tokens: bytes | bytearray, block_bytes: int, count: int) -> None:
    """Append to `keys` until it has the keys of the first `count` blocks of `tokens` (int32 as bytes).

    `before`: the key of the block before the first of `tokens`, or `root_key`.
    """
    last = keys[-1] if keys else before
    for at in range(len(keys) * block_bytes, count * block_bytes, block_bytes):
        last = blake2b(last + tokens[at : at + block_bytes], digest_size=KEY_BYTES).digest()
        keys.append(last)
