"""The file of tenants: what it says, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.quotas import Quota, Rate
from paceline.engine.config import EngineConfig
from paceline.engine.tenants import Tenants, digest_of, read_tenants
from paceline.errors import ConfigError

FILE = """
[default]
concurrency = 2
share_cache = true

[tenants.alice]
keys = ["a", "sha256:%s"]
weight = 2
priority = -1
share_cache = "team"
prompt_tokens = { rate = 1000, burst = 4000 }

[tenants.bob]
share_cache = false
concurrency = "unlimited"
"""


def read(path: Path, text: str) -> Tenants:
    path.write_text(text)
    return read_tenants(str(path))


def test_a_file_says_who_the_tenants_are(tmp_path: Path) -> None:
    tenants = read(tmp_path / "t.toml", FILE % digest_of("b"))
    assert tenants.keys == {digest_of("a"): "alice", digest_of("b"): "alice"}
    assert tenants.quotas.of("alice") == Quota(prompt_tokens=Rate(1000, 4000), concurrency=2)
    assert tenants.quotas.of("bob") == Quota()
    assert tenants.quotas.of("anybody") == Quota(concurrency=2)
    assert tenants.quotas.weights == {"alice": 2.0}
    assert tenants.is_named("bob") and not tenants.is_named("anybody")


def test_cached_kv_is_shared_as_the_file_says(tmp_path: Path) -> None:
    tenants = read(tmp_path / "t.toml", FILE % digest_of("b"))
    assert tenants.cache_group("alice") == "group team"
    assert tenants.cache_group("bob") == "tenant bob"
    assert tenants.cache_group("anybody") == tenants.cache_group("somebody") == "group everybody"
    assert read(tmp_path / "t.toml", "[tenants.a]").cache_group("a") == "tenant a"


def test_a_request_is_no_sooner_than_its_tenant(tmp_path: Path) -> None:
    tenants = read(tmp_path / "t.toml", FILE % digest_of("b"))
    assert [tenants.priority("alice", asked) for asked in (None, -5, 3)] == [-1, -1, 3]
    assert [tenants.priority("bob", asked) for asked in (None, -5, 3)] == [0, -5, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tenants", "a TOML file ("),
        ("[other]", "'other' is not valid; it must be made of the tables default and tenants.NAME"),
        ("[tenants.a]\nrate = 3", "tenants.a: 'rate' is not valid; it must be made of the keys borrow, concurrency"),
        ("[default]\nkeys = []", "default: 'keys' is not valid"),
        ("[tenants.a]\npriority = 1.5", "tenants.a.priority: 1.5 is not valid; it must be a whole number"),
        ("[tenants.a]\nshare_cache = 3", "tenants.a.share_cache: 3 is not valid; it must be true, false or the name"),
        ("[tenants.a]\nkeys = 'x'", "tenants.a.keys: '...' is not valid; it must be a list of keys"),
        ("[tenants.a]\nkeys = ['']", "tenants.a.keys[0]: '' is not valid; it must be a non-empty text"),
        ("[tenants.a]\nkeys = ['sha256:12']", "tenants.a.keys[0]: 'sha256:12' is not valid; it must be"),
        ("[tenants.a]\nconcurrency = 1.5", "tenants.a.concurrency: 1.5 is not valid; it must be a whole number"),
        ("tenants = 3", "tenants: 3 is not valid; it must be tables"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.toml"
    with pytest.raises(ConfigError) as caught:
        read(path, text)
    said = str(caught.value)
    assert message in said and str(path) in said and "\n" not in said


def test_a_key_is_one_tenants_and_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "t.toml", "[tenants.a]\nkeys = ['secret']\n[tenants.b]\nkeys = ['secret']")
    assert "tenants.b.keys[0]" in str(caught.value) and "a has it too" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--quotas: '/no/such.toml' is not valid.*No such file"):
        read_tenants("/no/such.toml")


def test_limits_and_times_are_settings_of_the_engine() -> None:
    config = EngineConfig(max_queued_requests=7, queue_timeout=3)
    assert config.schedule_by().limits.max_queued_requests == 7
    with pytest.raises(ConfigError, match="--max-queue-wait"):
        EngineConfig(max_queue_wait=-1)
    with pytest.raises(ConfigError, match="--queue-timeout: 0"):
        EngineConfig(queue_timeout=0)
