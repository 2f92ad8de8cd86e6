"""Settings come from SEGOPS_* and are checked."""

import pytest
from pydantic import ValidationError

from segops_service import Settings


def test_every_setting_has_a_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "host": "0.0.0.0",
        "port": 1,
        "platform": "cuda",
        "max_body_bytes": 2,
        "max_json_bytes": 3,
        "max_rows": 4,
        "max_segments": 5,
        "max_output_bytes": 6,
        "cache_size": 7,
        "log_level": "debug",
        "keep_alive_seconds": 8,
        "shutdown_seconds": 9,
    }
    for name, value in values.items():
        monkeypatch.setenv(f"SEGOPS_{name.upper()}", str(value))
    assert Settings().model_dump() == values


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
    ],
)
def test_a_setting_that_cannot_be_kept_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SEGOPS_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()
