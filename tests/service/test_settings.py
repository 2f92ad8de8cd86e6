"""Settings come from SEGOPS_* and are checked."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from segops_service import Settings


def test_every_setting_has_a_variable_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.touch()
    key.touch()
    values = {
        "host": "0.0.0.0",
        "port": 1,
        "platform": "cuda",
        "max_body_bytes": 2,
        "max_json_bytes": 3,
        "max_rows": 4,
        "max_segments": 5,
        "max_output_bytes": 6,
        "queue_requests": 10,
        "queue_bytes": 11,
        "buckets": "exact",
        "bucket_ratio": 1.5,
        "cache_size": 7,
        "batch_requests": 12,
        "batch_rows": 13,
        "batch_delay_seconds": 0.5,
        "preallocate": 0.25,
        "max_connections": 14,
        "max_header_bytes": 1500,
        "header_seconds": 0.75,
        "transfer_grace_seconds": 1.75,
        "transfer_bytes_per_second": 15,
        "tls_certificate": certificate,
        "tls_key": key,
        "log_format": "text",
        "tracing": True,
        "log_level": "debug",
        "keep_alive_seconds": 8,
        "shutdown_seconds": 9,
    }
    texts = {
        **values,
        "warm_up": '[{"op": "segmented_dot", "want": ["jvp"], "tangents": ["y", "x"]}]',
        "tokens": "one, two,,",
        "public_routes": "metrics,docs",
    }
    for name, value in texts.items():
        monkeypatch.setenv(f"SEGOPS_{name.upper()}", str(value))
    settings = Settings()
    assert {*texts} == {*Settings.model_fields}
    assert settings.model_dump(include={*values}) == values
    assert all(value != Settings.model_fields[name].default for name, value in values.items())
    (warm_up,) = settings.warm_up
    assert (warm_up.op, warm_up.want, warm_up.tangents) == ("segmented_dot", ("jvp",), ("y", "x"))
    assert [token.get_secret_value() for token in settings.tokens] == ["one", "two"]
    assert settings.public_routes == ("metrics", "docs")


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGOPS_TOKENS", "hush")
    assert "hush" not in repr(Settings())
    assert "hush" not in Settings().model_dump_json()


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_an_argument_overrides_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGOPS_PORT", "1")
    assert Settings(port=2).port == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "65536"),
        ("PLATFORM", "tpu"),
        ("MAX_ROWS", str(2**31)),
        ("MAX_SEGMENTS", str(2**31)),
        ("CACHE_SIZE", "0"),
        ("MAX_BODY_BYTES", "many"),
        ("QUEUE_REQUESTS", "0"),
        ("QUEUE_BYTES", "0"),
        ("BUCKETS", "fibonacci"),
        ("BUCKET_RATIO", "1.000001"),
        ("BUCKET_RATIO", "5"),
        ("BATCH_REQUESTS", "0"),
        ("BATCH_ROWS", str(2**31 // 3)),
        ("BATCH_DELAY_SECONDS", "2"),
        ("PREALLOCATE", "1.5"),
        ("MAX_HEADER_BYTES", "100"),
        ("TLS_KEY", "/no/such/file"),
        ("PUBLIC_ROUTES", "health,nothing"),
        ("WARM_UP", "[1]"),
        ("WARM_UP", '[{"op": "segmented_max"}]'),
        ("WARM_UP", '[{"op": "segmented_sum", "row": 5}]'),
        ("WARM_UP", '[{"op": "segmented_sum", "rows": -1}]'),
        ("WARM_UP", '[{"op": "segmented_sum", "tangents": ["y"]}]'),
    ],
)
def test_a_setting_that_cannot_be_kept_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SEGOPS_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()
