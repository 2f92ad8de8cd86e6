"""Settings of the service, read from ``SEGOPS_*`` environment variables."""

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from segops_service.operations import OPERATIONS, WANTS

Platform = Literal["auto", "cpu", "cuda"]
Buckets = Literal["geometric", "exact"]
PublicRoute = Literal["health", "metrics", "docs"]
LogFormat = Literal["json", "text"]
LogLevel = Literal["critical", "error", "warning", "info", "debug"]

KIB = 1024
MIB = 1024 * KIB


class WarmUp(BaseModel):
    """Requests to compile for before the service is ready."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: Literal[tuple(OPERATIONS)]  # type: ignore[valid-type]
    rows: int = Field(1000, ge=0, description="Largest number of rows of such a request.")
    segments: int = Field(100, ge=0, description="Largest num_segments.")
    dtype: Literal["float32", "float64"] = "float32"
    ndim: Literal[1, 2] = Field(2, description="Axes of the first operand.")
    want: tuple[Literal[WANTS], ...] = ("value",)  # type: ignore[valid-type]
    cotangent: bool = Field(False, description="Whether a cotangent is sent.")
    tangents: tuple[str, ...] = Field((), description="Operands that a tangent is sent for.")

    @model_validator(mode="after")
    def _check_tangents(self) -> Self:
        operands = OPERATIONS[self.op].operands
        if unknown := {*self.tangents} - {*operands}:
            raise ValueError(f"tangents: {self.op} has {', '.join(operands)}, not {unknown}")
        return self


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
    queue_requests: int = Field(
        1024, ge=1, description="Requests under way at once; more are refused with 429."
    )
    queue_bytes: int = Field(
        1024 * MIB,
        ge=1,
        description=(
            "Bytes of the bodies and answers of all requests under way; more are refused with "
            "429, so nothing larger is ever let in."
        ),
    )
    buckets: Buckets = Field(
        "geometric",
        description=(
            "How sizes are rounded up before a function is compiled for them: `geometric`, or "
            "`exact` for one compiled function for each num_segments as sent, and no batching."
        ),
    )
    bucket_ratio: float = Field(
        1.25,
        ge=1.05,
        le=4,
        description=(
            "Ratio of neighbouring buckets: from 10240 on, rows are padded by at most this factor."
        ),
    )
    cache_size: int = Field(
        256, ge=1, description="Compiled functions kept; the least recently used one goes first."
    )
    warm_up: tuple[WarmUp, ...] = Field(
        (),
        description=(
            "JSON list of requests to compile for before the service is ready, such as "
            '`[{"op": "segmented_sum", "rows": 5000, "segments": 100}]`.'
        ),
    )
    batch_requests: int = Field(64, ge=1, description="Requests computed in one launch.")
    batch_rows: int = Field(
        2**16,
        ge=0,
        le=(2**31 - 1) // 9,
        description="Rows up to which requests are put into one launch.",
    )
    batch_delay_seconds: float = Field(
        0.001,
        ge=0,
        le=1,
        description="How long a launch waits for requests that are still arriving.",
    )
    preallocate: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of each GPU's memory to take at the start; 0 takes it as needed.",
    )
    max_connections: int = Field(1024, ge=1, description="Connections open at once.")
    max_header_bytes: int = Field(64 * KIB, ge=1024, description="Largest head of a request.")
    header_seconds: float = Field(
        10, gt=0, description="How long the head of a request may take to arrive."
    )
    transfer_grace_seconds: float = Field(
        10, gt=0, description="How long a body may take before its rate is looked at."
    )
    transfer_bytes_per_second: int = Field(
        16 * KIB, ge=1, description="Slowest mean rate of a body sent or an answer read."
    )
    tokens: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="Bearer tokens that are let in, separated by commas; none lets all in."
    )
    public_routes: Annotated[tuple[PublicRoute, ...], NoDecode] = Field(
        ("health",),
        description="Of `health`, `metrics` and `docs`, those that need no token, by commas.",
    )
    tls_certificate: FilePath | None = Field(
        None, description="Certificate chain (PEM) to serve HTTPS with."
    )
    tls_key: FilePath | None = Field(None, description="Private key (PEM) of the certificate.")
    log_format: LogFormat = Field(
        "json", description="Form of the log's lines: `json`, or `text` for people."
    )
    tracing: bool = Field(
        False, description="Send OpenTelemetry traces; needs the extra `otel` and OTEL variables."
    )
    log_level: LogLevel = Field("info", description="Level of the log on standard error.")
    keep_alive_seconds: int = Field(
        30, ge=1, description="How long an idle connection is kept open."
    )
    shutdown_seconds: int = Field(
        30, ge=0, description="How long accepted requests may take to finish after SIGTERM."
    )

    @field_validator("tokens", "public_routes", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())
