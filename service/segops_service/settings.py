"""Settings of the service, read from ``SEGOPS_*`` environment variables."""

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Platform = Literal["auto", "cpu", "cuda"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]

KIB = 1024
MIB = 1024 * KIB


class Settings(BaseSettings):
    """Everything an operator can set; field ``name`` is the variable ``SEGOPS_NAME``."""

    model_config = SettingsConfigDict(env_prefix="SEGOPS_", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    platform: Platform = Field(
        "auto",
        description=(
            "Where to compute: `cuda`, `cpu`, or `auto` for a GPU if there is one. With `cuda` and "
            "no GPU the service stays unready and computes nothing."
        ),
    )
    max_body_bytes: int = Field(256 * MIB, ge=1, description="Largest request body.")
    max_json_bytes: int = Field(
        8 * MIB,
        ge=1,
        description="Largest JSON request body, and largest arrays of an answer sent as JSON.",
    )
    max_rows: int = Field(
        2**25, ge=0, le=(2**31 - 1) // 3, description="Largest number of rows (length of idx)."
    )
    max_segments: int = Field(2**24, ge=0, le=2**31 - 1, description="Largest num_segments.")
    max_output_bytes: int = Field(
        512 * MIB,
        ge=0,
        le=2**32 - 1,  # what one msgpack binary holds
        description="Largest answer, summed over everything that is wanted.",
    )
    cache_size: int = Field(
        256, ge=1, description="Compiled functions kept; the least recently used one goes first."
    )
    log_level: LogLevel = Field("info", description="Level of the log on standard error.")
    keep_alive_seconds: int = Field(
        30, ge=1, description="How long an idle connection is kept open."
    )
    shutdown_seconds: int = Field(
        30, ge=0, description="How long accepted requests may take to finish after SIGTERM."
    )
