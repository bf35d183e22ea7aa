"""Where the random bits of a sequence come from."""

from gpu_worker.sampler.seeds import FIRST_SHARED_OFFSET, GLOBAL_SEED, SeedSource
from shared.sampling_params import SamplingParams


def test_a_seeded_request_counts_for_itself():  # spec 88, R18
    source = SeedSource()
    source.assign(SamplingParams(deterministic=True), 0, 1000)
    assert source.assign(SamplingParams(seed=7), 0, 10) == (7, 0)
    assert source.assign(SamplingParams(seed=7), 0, 10) == (7, 0)  # whoever came before


def test_children_differ():  # spec 129
    source = SeedSource()
    assert [source.assign(SamplingParams(seed=(1 << 63) - 1), child, 10)[0] for child in range(3)] == [
        (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1
    ]  # fmt: skip


def test_deterministic_requests_share_one_stream():  # spec 89
    source = SeedSource()
    params = SamplingParams(deterministic=True)
    assert source.assign(params, 0, 16) == (GLOBAL_SEED, FIRST_SHARED_OFFSET)
    assert source.assign(params, 1, 4) == (GLOBAL_SEED, FIRST_SHARED_OFFSET + 16)
    assert source.assign(params, 0, 1) == (42, (1 << 62) + 20)
    assert SeedSource().assign(params, 0, 16) == (GLOBAL_SEED, FIRST_SHARED_OFFSET)  # a restart begins again


def test_a_users_seed_42_does_not_collide():  # spec 89
    source = SeedSource()
    seed, offset = source.assign(SamplingParams(seed=42), 0, 1 << 20)
    assert (seed, offset) == (42, 0)
    assert offset + (1 << 20) < FIRST_SHARED_OFFSET


def test_unseeded_requests_get_entropy():  # spec R18
    source = SeedSource()
    drawn = {source.assign(SamplingParams(), 0, 10) for _ in range(50)}
    assert len(drawn) == 50
    assert all(-(1 << 63) <= seed < 1 << 63 and offset == 0 for seed, offset in drawn)
    assert {seed < 0 for seed, _ in drawn} == {True, False}
