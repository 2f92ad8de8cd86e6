"""Metrics in the format of Prometheus, with a registry of their own."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from segops_service.admission import Admission
from segops_service.engine import Engine
from segops_service.exchange import Exchange, Stage
from segops_service.operations import OPERATIONS, WANTS
from segops_service.snapshot import CacheSnapshot, DeviceSnapshot, WorkerState
from segops_service.tallies import Tally, histogram

CONTENT_TYPE = exposition.CONTENT_TYPE_PLAIN_0_0_4

# Three a decade, from what an empty stage takes to what nobody waits for.
_SECONDS = (
    *(50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_REQUESTS = tuple(2.0**power for power in range(11))
_ROWS = tuple(4.0**power for power in range(14))


class Metrics(Collector):
    """Counts requests, launches and compilations; asks for everything else when it is scraped.

    It observes an engine (:class:`segops_service.snapshot.Observer`).

    Parameters
    ----------
    engine
        What computes.
    admission
        What is under way.
    """

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._requests: dict[tuple[str, tuple[str, ...], str], int] = {}
        self._seconds = {op: Tally(_SECONDS) for op in ("", *OPERATIONS)}
        self._stages = {stage: Tally(_SECONDS) for stage in get_args(Stage)}
        self._refusals: Counter[str] = Counter()
        self._bytes_in = self._bytes_out = 0
        self._batch_requests = Tally(_REQUESTS)
        self._batch_rows = Tally(_ROWS)
        self._launch_seconds = Tally(_SECONDS)
        self._compile_seconds = Tally(_SECONDS)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def request(self, exchange: Exchange, outcome: str, seconds: float) -> None:
        """Count a request that has ended.

        Parameters
        ----------
        exchange
            What is known of it.
        outcome
            ``ok``, ``hang-up``, or the slug of the problem.
        seconds
            How long it took.
        """
        key = (exchange.op, exchange.want, outcome)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._bytes_in += exchange.bytes_in
        self._bytes_out += exchange.bytes_out
        for stage, spent in exchange.stages.items():
            self._stages[stage].add(spent)
        if outcome == "ok":
            self._seconds[exchange.op].add(seconds)

    def refused(self, problem: str) -> None:
        """Count a request that its connection refused, before anything else saw all of it."""
        self._refusals[problem] += 1

    def launched(self, requests: int, rows: int, seconds: float) -> None:
        """Count a launch."""
        self._batch_requests.add(requests)
        self._batch_rows.add(rows)
        self._launch_seconds.add(seconds)

    def compiled(self, seconds: float) -> None:
        """Count a compilation."""
        self._compile_seconds.add(seconds)

    def render(self) -> bytes:
        """Return everything as `CONTENT_TYPE`."""
        return exposition.generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Give everything, as the registry asks for it."""
        yield self._counted()
        yield self._refused()
        yield _counter("received_bytes", "Bytes of the bodies of requests.", self._bytes_in)
        yield _counter("sent_bytes", "Bytes of the bodies of answers.", self._bytes_out)
        yield from self._timed()
        snapshot = self._engine.snapshot()
        yield _gauge("ready", "Whether requests are computed now.", snapshot.obstacle is None)
        yield _gauge("queued_requests", "Requests that wait for a device.", snapshot.queued)
        yield from _admission(self._admission)
        yield from _cache(snapshot.cache)
        yield from _devices(snapshot.devices)

    def _counted(self) -> Metric:
        requests = CounterMetricFamily(
            "segops_requests",
            "Requests by operation, what was wanted, and how they ended: ok, hang-up or a problem. "
            "Want is empty for those that were not understood; both are for other routes.",
            labels=["op", "want", "outcome"],
        )
        for (op, want, outcome), count in self._requests.items():
            wanted = "+".join(name for name in WANTS if name in want)
            requests.add_metric([op, wanted, outcome], count)
        return requests

    def _refused(self) -> Metric:
        refusals = CounterMetricFamily(
            "segops_refusals",
            "Requests that their connection refused: cut off, malformed, endless or too slow.",
            labels=["problem"],
        )
        for problem, count in self._refusals.items():
            refusals.add_metric([problem], count)
        return refusals

    def _timed(self) -> Iterator[Metric]:
        yield histogram(
            "segops_request_seconds",
            "Time from the head of a request to the end of its answer, of those that ended well.",
            self._seconds,
            "op",
        )
        text = "Time that a request spent in a stage."
        yield histogram("segops_stage_seconds", text, self._stages, "stage")
        for name, text, tally in (
            ("batch_requests", "Requests in a launch.", self._batch_requests),
            ("batch_rows", "Rows in a launch.", self._batch_rows),
            ("launch_seconds", "Time of a launch.", self._launch_seconds),
            ("compile_seconds", "Time to compile a function.", self._compile_seconds),
        ):
            yield histogram(f"segops_{name}", text, {"": tally})


def _admission(admission: Admission) -> Iterator[Metric]:
    yield _gauge("admitted_requests", "Requests under way.", admission.requests)
    yield _gauge("admitted_requests_limit", "Most of them at once.", admission.max_requests)
    yield _gauge("admitted_bytes", "Bytes of their bodies and answers.", admission.bytes)
    yield _gauge("admitted_bytes_limit", "Most of those at once.", admission.max_bytes)
    yield _gauge("arriving_requests", "Requests whose body arrives.", admission.arriving)
    yield _counter("refused_requests", "Requests turned away for want of room.", admission.refused)


def _cache(cache: CacheSnapshot) -> Iterator[Metric]:
    yield _gauge("cache_entries", "Compiled functions kept.", cache.entries)
    yield _gauge("cache_capacity", "Most of them at once.", cache.capacity)
    yield _counter("cache_hits", "Launches whose function was there.", cache.hits)
    yield _counter("cache_misses", "Functions that had to be compiled.", cache.misses)
    yield _counter("cache_evictions", "Functions that made room for others.", cache.evictions)


_GAUGES = {
    "requests_under_way": "Requests that a device was given.",
    "memory_used_bytes": "Memory of a device that is in use.",
    "memory_limit_bytes": "Memory of a device.",
}
_COUNTERS = {
    "launches": "Launches of a device that ended well.",
    "requests": "Requests in them.",
    "rows": "Rows in them.",
    "compute_seconds": "Time of them.",
    "failures": "Launches of a device that failed.",
    "restarts": "Times that the worker of a device was started again after it had died.",
}


def _devices(devices: Iterable[DeviceSnapshot]) -> Iterator[Metric]:
    yield _info(devices)
    yield _states(devices)
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"segops_device_{name}", text, labels=["device"])
        for device in devices:
            if (value := getattr(device, name)) is not None:
                gauge.add_metric([str(device.id)], value)
        yield gauge
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"segops_device_{name}", text, labels=["device"])
        for device in devices:
            counter.add_metric([str(device.id)], getattr(device, name))
        yield counter


def _info(devices: Iterable[DeviceSnapshot]) -> Metric:
    labels = ["device", "kind", "platform"]
    info = GaugeMetricFamily("segops_device_info", "Always 1; what a device is.", labels=labels)
    for device in devices:
        info.add_metric([str(device.id), device.kind, device.platform], 1)
    return info


def _states(devices: Iterable[DeviceSnapshot]) -> Metric:
    labels = ["device", "state"]
    text = "Whether the worker of a device is in a state."
    states = GaugeMetricFamily("segops_device_state", text, labels=labels)
    for device in devices:
        for state in get_args(WorkerState):
            states.add_metric([str(device.id), state], device.state == state)
    return states


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"segops_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"segops_{name}", text, value=value)
