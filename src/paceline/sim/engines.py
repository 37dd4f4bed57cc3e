"""What is known of engines' step times without measuring one's own: coefficients fitted to published measurements.

The points are those of NVIDIA's AIConfigurator (Apache-2.0), closed loops on H100; `error` is the mean error of the
predicted TPOT when each group of points is predicted from the others. Coefficients fitted to a run of one's own server
are a small JSON file, and may stand wherever an engine is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ConfigError, ModelError
from paceline.sim.json_files import read_own, write_own
from paceline.sim.latency import Coefficients

FORMAT = "paceline-coefficients-1"


@dataclass(frozen=True)
class EngineProfile:
    """Coefficients with where they come from."""

    name: str
    coefficients: Coefficients
    error: float  # share
    source: str

    def write(self, path: Path) -> None:
        write_own(path, FORMAT, self)

    @staticmethod
    def read(path: Path) -> EngineProfile:
        """ModelError says what is wrong with the file."""
        values = read_own(path, "--engine", FORMAT, "paceline fit")
        try:
            coefficients = Coefficients(**values.pop("coefficients"))
            return EngineProfile(coefficients=coefficients, **values)
        except (KeyError, TypeError, ConfigError) as error:
            raise ModelError(f"--engine {path}: {error}") from None


ENGINES: dict[str, EngineProfile] = {
    profile.name: profile
    for profile in (
        EngineProfile(
            "vllm",
            Coefficients(
                compute=0.648,
                memory=0.936,
                attention=0.650,
                kv_read=0.961,
                link=0.687,
                all_reduce=27.4e-6,
                step=1.10e-3,
                layer=5.7e-6,
                sample=51e-6,
            ),
            0.030,
            "vLLM 0.12, Qwen3-32B bf16 on H100, 60 points",
        ),
        EngineProfile(
            "trtllm",
            Coefficients(
                compute=0.783,
                memory=0.821,
                attention=0.312,
                kv_read=1.0,
                link=0.716,
                all_reduce=7.5e-6,
                step=1.26e-3,
                layer=5.6e-6,
                sample=27e-6,
            ),
            0.060,
            "TensorRT-LLM 1.0, Llama-3.1-8B bf16 on H100, 124 points",
        ),
        EngineProfile("roofline", Coefficients(), 0.17, "no fit: round figures, as a rule too fast"),
    )
}


def engine(name: str) -> EngineProfile:
    """By its name, or from a file that `paceline fit` wrote. ConfigError for a name not in ENGINES."""
    if name.endswith(".json"):
        return EngineProfile.read(Path(name))
    if name not in ENGINES:
        raise ConfigError("--engine", name, "one of " + ", ".join(ENGINES) + ", or a .json of `paceline fit`")
    return ENGINES[name]
