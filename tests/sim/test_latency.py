"""Step times, shapes of models, hardware, profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import ConfigError, ModelError, PacelineError
from paceline.sim.cluster import simulate
from paceline.sim.fit import closed_loop_tpot
from paceline.sim.hardware import HARDWARE, hardware
from paceline.sim.latency import Coefficients, Deployment, StepShape
from paceline.sim.models import MODELS, model, shape_of
from paceline.sim.profile import Measured, Profile, Serving, fit_profile
from tests.sim.samples import DEPLOYMENT, azure, short, spec

BILLIONS = {
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.1-405b": 405.9,
    "qwen3-32b": 32.8,
    "qwen3-235b-a22b": 235.1,
    "qwen3-30b-a3b": 30.5,
    "mixtral-8x7b": 46.7,
    "mistral-7b": 7.25,
    "gpt-oss-120b": 116.8,
    "smollm2-135m": 0.1345,
}


@pytest.mark.parametrize("name", BILLIONS)
def test_known_models_have_their_published_number_of_weights(name: str) -> None:
    assert model(name).parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)


def test_kv_of_a_token_and_of_a_device() -> None:
    assert DEPLOYMENT.kv_bytes_per_token == 131072
    assert Deployment(model("llama-3.1-70b"), hardware("h100"), 2).kv_bytes_per_token == 327680
    assert DEPLOYMENT.kv_tokens(0.9, 8192) == pytest.approx(403_000, rel=0.03)
    assert Deployment(model("llama-3.1-8b"), hardware("rtx4090")).kv_tokens(0.9, 2048) == pytest.approx(41_408, rel=0.1)
    assert Deployment(model("llama-3.1-70b"), hardware("h100")).kv_tokens() < 0


def test_names_may_be_written_as_people_write_them() -> None:
    assert model("meta-llama/Llama-3.1-8B-Instruct") is MODELS["llama-3.1-8b"]
    assert hardware("H100") is HARDWARE["h100"]
    for name, call in (("--model", lambda: model("gpt-9")), ("--gpu", lambda: hardware("abacus"))):
        with pytest.raises(ConfigError, match=name):
            call()


def test_a_config_file_gives_the_shape(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert replace(model(str(tmp_path)), name="llama-3.1-8b") == model("llama-3.1-8b")


@pytest.mark.parametrize(
    "config, text",
    [
        ({"hidden_size": 64}, "num_hidden_layers or n_layer, num_attention_heads or n_head"),
        ({"hidden_size": -1, "num_hidden_layers": 2, "num_attention_heads": 2}, "hidden_size is -1"),
        ({"hidden_size": "wide", "num_hidden_layers": 2, "num_attention_heads": 2}, "hidden_size is 'wide'"),
    ],
)
def test_a_config_that_lacks_what_is_needed_gets_one_message(config: dict[str, object], text: str) -> None:
    with pytest.raises(ModelError) as error:
        shape_of(config, "here/config.json")
    assert text in str(error.value) and "here/config.json" in str(error.value)


def test_a_run_of_decodes_takes_to_the_bit_what_its_steps_take() -> None:
    hosts = Coefficients(), Coefficients(host=5.5e-3, host_row=1e-5)  # the second is passed by the device on the way
    for name, own in product(("llama-3.1-8b", "gpt-oss-20b"), hosts):
        times = Deployment(model(name), hardware("h100"), coefficients=own).step_times().scaled(1.1)
        together = times.decode_run(7, 700, 50)
        alone = [times.seconds(StepShape(7, 7, 0.0, 7, 700.0 + 7 * step)) for step in range(50)]
        assert together.tolist() == alone


def test_a_step_takes_the_longer_of_what_device_and_host_need() -> None:
    def seconds(rows: int, **own: float) -> float:
        times = Deployment(model("llama-3.1-8b"), hardware("h100"), coefficients=Coefficients(**own)).step_times()
        return times.scaled(2.0).seconds(StepShape(rows, rows, 0.0, rows, 500.0 * rows))

    device = seconds(64)
    assert seconds(64, host=1e-3, host_row=1e-6) == device
    assert seconds(64, host=0.1, host_row=1e-3) == pytest.approx(2 * (0.1 + 0.064))


def test_published_points_of_the_8b_model_are_within_a_fifth() -> None:
    for concurrency, tpot in ((8, 7.4), (16, 8.4), (32, 9.9), (64, 13.1), (128, 19.3)):
        found = closed_loop_tpot(DEPLOYMENT.step_times(), 1024, 512, concurrency, DEPLOYMENT.kv_tokens(0.9, 8192))
        assert found * 1e3 == pytest.approx(tpot, rel=0.2)


def test_more_of_anything_takes_longer_and_more_devices_do_not() -> None:
    times = DEPLOYMENT.step_times()
    base = StepShape(64, 64, 0.0, 64, 64_000.0)
    for field, value in (("tokens", 640), ("sampled", 128), ("pairs", 1e6), ("context", 1e6)):
        assert times.seconds(base._replace(**{field: value})) > times.seconds(base)
    wide = replace(DEPLOYMENT, tensor_parallel=2).step_times()
    assert wide.seconds(base) < times.seconds(base)


def test_coefficients_and_deployments_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match="memory"):
        Coefficients(memory=0.0)
    with pytest.raises(ConfigError, match="--tensor-parallel"):
        replace(DEPLOYMENT, tensor_parallel=3)


def made_up(seed: int = 0) -> list[Measured]:
    """Steps of a machine that is exactly as the model says, give or take 1 %."""
    random = np.random.default_rng(seed)
    found = []
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        for context in (16, 128, 1024):
            decode = StepShape(tokens, tokens, 0.0, tokens, float(tokens * context))
            chunk = StepShape(tokens, 1, tokens * (context + tokens / 2), 0, 0.0)
            for shape in (decode, chunk):
                seconds = 1e-3 + 4e-5 * max(shape.tokens, 20) + 2e-6 * shape.sampled
                seconds += 1e-8 * shape.pairs + 3e-8 * shape.context
                found.append(Measured(shape, seconds * float(random.normal(1, 0.01))))
    return found


def test_a_profile_is_found_again_from_measurements(tmp_path: Path) -> None:
    fitted = fit_profile(made_up())
    assert fitted.left_out_error < 0.03
    kept = {**vars(fitted)}
    profile = Profile("paceline", "0", "m", "cpu", "float32", 1000, 16, shapes=60, facts={}, **kept)
    profile.write(tmp_path / "profile.json")
    times = Profile.read(tmp_path / "profile.json").step_times()
    unseen = made_up(1)
    off = [times.seconds(sample.shape) / sample.seconds - 1 for sample in unseen]
    assert np.mean(np.abs(off)) < 0.03
    assert times.seconds(StepShape(2000, 1, 0.0, 0, 0.0)) > times.seconds(StepShape(512, 1, 0.0, 0, 0.0))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "paceline-profile-1"}', "{"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(ModelError, match="profile"):
        Profile.read(tmp_path / "profile.json")
    with pytest.raises(ModelError, match="cannot be read"):
        Profile.read(tmp_path / "none.json")


def test_a_profile_needs_enough_shapes() -> None:
    with pytest.raises(PacelineError, match="at least 8"):
        fit_profile(made_up()[:5])


def test_a_profile_through_a_server_adds_to_steps_and_around_them(tmp_path: Path) -> None:
    serving = Serving(1e-3, 1e-4, 2e-3, 3e-3, 0.01, [(1, 0.01, 0.011)])
    profile = Profile(
        "paceline", "0", "m", "cpu", "float32", 4096, 16, [(1, 0.01), (64, 0.05)], 0.0, 0.0, 0.0, 0, 0, 0, 9,
        serving=serving,
    )  # fmt: skip
    profile.write(tmp_path / "profile.json")
    read = Profile.read(tmp_path / "profile.json")
    shape = StepShape(1, 1, 0.0, 1, 0.0)
    assert read.step_times(served=False).seconds(shape) == pytest.approx(0.010)
    assert read.step_times().seconds(shape) == pytest.approx(0.0111)
    plain = spec(num_blocks=64, max_model_len=256)
    one = short(azure(1), 32, 8)
    before, after = simulate(one, plain), simulate(one, replace(plain, entry_seconds=2e-3, exit_seconds=3e-3))
    assert after.records.ttft - before.records.ttft == pytest.approx(5e-3)
    assert after.records.tpot == pytest.approx(before.records.tpot)
