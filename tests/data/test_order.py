"""The order of batches: each pass a permutation, a pure function of (seed, step), whatever the number of devices."""

import hashlib

import numpy as np
import pytest
from helpers import order_hash

from lm.data.order import _passes, batch_rows, derive_seed, permutation, rank_slice, update_order_hash


def positions(seed: int, steps: int, batch: int, blocks: int) -> np.ndarray:
    """The block numbers of the first `steps` batches, one after the other."""
    return np.concatenate([batch_rows(seed, step, batch, blocks) for step in range(steps)])


@pytest.mark.parametrize(("batch", "blocks"), [(1, 7), (4, 10), (5, 10), (3, 1), (7, 3), (10, 10)])
def test_each_pass_shows_every_block_once(batch: int, blocks: int) -> None:
    passes = 4
    found = positions(3, -(-passes * blocks // batch), batch, blocks)[: passes * blocks].reshape(passes, blocks)
    assert (np.sort(found, axis=1) == np.arange(blocks)).all()


def test_every_batch_is_full() -> None:
    assert {len(batch_rows(0, step, 7, 3)) for step in range(20)} == {7}


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [permutation(seed, epoch, 50) for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_order_is_numpys_frozen_stream_of_hashed_seed() -> None:
    for seed, epoch in ((0, 0), (5, 2)):
        digest = hashlib.sha256(f'["order",{seed},{epoch}]'.encode()).hexdigest()
        drawn = int(digest[:16], 16) // 2
        assert derive_seed("order", seed, epoch) == drawn
        expected = np.random.RandomState(drawn % 2**32).permutation(20)
        assert permutation(seed, epoch, 20).tolist() == expected.tolist()


def test_a_stream_is_named_by_all_its_parts() -> None:
    names = [("a", 1), ("a", 2), ("b", 1), ("a1",), ("a", 1, 0), ("a", "1")]
    assert len({derive_seed(*name) for name in names}) == len(names)
    assert all(0 <= derive_seed(*name) < 2**63 for name in names)


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    steps = list(range(30))
    forwards = {step: batch_rows(1, step, 4, 10).tolist() for step in steps}
    _passes.cache_clear()
    np.random.RandomState(0).shuffle(steps)
    assert {step: batch_rows(1, step, 4, 10).tolist() for step in steps} == forwards


def test_a_caller_that_changes_its_batch_changes_no_other() -> None:
    before = batch_rows(1, 2, 4, 10).tolist()
    batch_rows(1, 2, 4, 10)[:] = -1
    assert batch_rows(1, 2, 4, 10).tolist() == before


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 4, 7, 12])
def test_the_shares_of_all_processes_are_the_whole_in_order(world: int, size: int) -> None:
    rows = np.arange(size)
    parts = [rows[rank_slice(rank, world, size)] for rank in range(world)]
    assert np.concatenate(parts).tolist() == rows.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_order_hash_is_a_chain_over_batches() -> None:
    digest = ""
    for step in range(6):
        blocks = batch_rows(2, step, 4, 10)
        data = b"".join(int(block).to_bytes(8, "little") for block in blocks)
        digest = hashlib.sha256(digest.encode() + data).hexdigest()
        assert order_hash(2, step + 1, 4, 10) == digest
        assert update_order_hash(order_hash(2, step, 4, 10), blocks.astype(np.int32)) == digest


def test_the_hash_tells_orders_apart() -> None:
    hashes = [order_hash(*arguments) for arguments in ((0, 5, 4, 10), (1, 5, 4, 10), (0, 6, 4, 10), (0, 5, 4, 11))]
    assert len(set(hashes)) == 4
    assert update_order_hash("", np.array([1, 2])) != update_order_hash("", np.array([2, 1]))
