"""Host blocks: each is free, held by one sequence, or on its way back."""

from __future__ import annotations

import pytest

from paceline.kv.host_pool import HostPool


def test_blocks_that_come_back_are_given_out_again_from_the_next_step_on() -> None:
    pool = HostPool(3)
    held = pool.allocate(3)
    assert sorted(held) == [0, 1, 2]
    pool.release(held[:2])
    assert pool.available == 0, "the step being scheduled may still read them"
    pool.check([held[2:]])
    pool.begin_step()
    assert pool.available == 2
    assert sorted(pool.allocate(2)) == sorted(held[:2])


def test_more_than_there_are_is_an_error_with_the_numbers() -> None:
    pool = HostPool(2)
    pool.allocate(1)
    with pytest.raises(ValueError, match="2 host blocks asked for, 1 of 2 are free"):
        pool.allocate(2)


def test_a_pool_of_none_gives_none() -> None:
    pool = HostPool(0)
    assert pool.allocate(0) == [] and pool.available == 0
    pool.check([])


def test_the_check_finds_a_lost_and_a_doubly_owned_block() -> None:
    pool = HostPool(2)
    held = pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([])
    with pytest.raises(AssertionError):
        pool.check([held, held])
