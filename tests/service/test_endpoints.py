"""Endpoints: time limits, hang-ups and a full queue, from the head to the end of an answer."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from segops_client import wire
from segops_service import Settings, create_app
from segops_service.app import Application
from segops_service.calls import Call
from segops_service.errors import MalformedBodyError
from segops_service.exchange import Exchange, exchange_of
from tests.service.asgi import Reply, scope
from tests.service.calls import Gate, SlowCompiler, Submitted, acting, engine_on, library
from tests.service.helpers import MSGPACK, Running, assert_bits_equal, case, post, serving

SUM, MEAN, DOT = "segmented_sum", "segmented_mean", "segmented_dot"


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """One device, warm for sums, to which calls of over a hundred rows are large."""
    with engine_on(1, batch_rows=100) as engine:
        for rows in (5, 200):
            engine.answer(case(SUM, rows=rows).call())
        yield engine


class Asking:
    """One request to an application, sent bit by bit, on the loop that runs."""

    def __init__(self, app: Application, op: str = SUM, **headers: str) -> None:
        self.reply = Reply()
        self.reads = asyncio.Event()
        self.reads.set()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        given = {"content-type": wire.MEDIA_TYPE, **headers}
        pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in given.items()]
        self.scope = scope(f"/v1/{op}", "POST", pairs)
        self._task = asyncio.ensure_future(app(self.scope, self._receive, self._send))

    def send(self, body: bytes | memoryview, *, more: bool = False) -> "Asking":
        """Send the body, or a part of it."""
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def hang_up(self) -> None:
        """Close the connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def end(self) -> Reply:
        """Wait for the end of the request."""
        await asyncio.wait_for(self._task, 10)
        return self.reply

    async def _receive(self) -> dict[str, Any]:
        message = await self._inbox.get()
        if message["type"] == "http.disconnect":
            self.hang_up()  # it stays closed
        self.reply.received += 1
        return message

    async def _send(self, message: Any) -> None:
        self.reply.messages.append(message)
        await self.reads.wait()


def _body(op: str = SUM, rows: int = 5, **more: Any) -> bytes:
    return wire.packb({**case(op, rows=rows).fields, **more})


def _problem(reply: Reply) -> tuple[int, str]:
    document = msgspec.json.decode(reply.body)
    return reply.status, document["type"].removeprefix("urn:segops:problem:")


def _counts(app: Application) -> tuple[int, int, int]:
    return app.admission.requests, app.admission.bytes, app.admission.arriving


class Busy:
    """An application whose only device is held, so that what comes stays in the queue."""

    def __init__(self, engine: Running, **settings: Any) -> None:
        self.engine = engine
        self.app = create_app(Settings(**settings), engine.engine)
        self._gate = Gate()

    async def __aenter__(self) -> "Busy":
        calls = Submitted(self.engine)
        self._held = calls.add("held", acting(case(SUM, rows=5).call(), self._gate.hold))
        await asyncio.to_thread(self._gate.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.open()
        assert _counts(self.app) == (0, 0, 0)

    async def open(self) -> None:
        """Let the device go on."""
        self._gate.open()
        await self._held

    async def until(self, queued: int) -> None:
        """Wait until so many calls are queued."""
        for _ in range(2000):
            if self.engine.engine.snapshot().queued == queued:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(self.engine.engine.snapshot())

    @property
    def requests(self) -> int:
        """Requests that the device has computed."""
        return self.engine.engine.snapshot().devices[0].requests


def test_an_answer_is_that_of_the_library_and_its_stages_are_timed(engine: Running) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        asking = Asking(app)
        reply = await asking.send(_body()).end()
        assert _counts(app) == (0, 0, 0)
        stages = exchange_of(asking.scope).stages
        assert {*stages} == {"upload", "decode", "queue", "compute", "encode"}
        assert min(stages.values()) >= 0
        return reply

    reply = engine.run(scenario())
    assert reply.status == 200
    assert reply.header(b"content-length") == str(len(reply.body))
    assert_bits_equal(wire.unpackb(reply.body), library(case(SUM, rows=5).call()))


@pytest.mark.parametrize("limit", ["30", "0.5", "1e2", " 7 "])
def test_a_request_within_its_time_limit_is_served(engine: Running, limit: str) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        return await Asking(app, x_request_timeout=limit).send(_body()).end()

    assert engine.run(scenario()).status == 200


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "soon", "", "1e999", "1,5"])
def test_a_time_limit_that_is_none_is_refused_before_the_body(engine: Running, limit: str) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        reply = await Asking(app, x_request_timeout=limit).end()
        assert _counts(app) == (0, 0, 0)
        return reply

    reply = engine.run(scenario())
    assert _problem(reply) == (422, "invalid-argument")
    assert msgspec.json.decode(reply.body)["field"] == "X-Request-Timeout"
    assert reply.received == 0


def test_a_request_past_its_time_limit_leaves_the_queue_and_is_not_computed(
    engine: Running,
) -> None:
    async def scenario() -> tuple[Reply, int]:
        async with Busy(engine) as busy:
            before = busy.requests
            reply = await Asking(busy.app, x_request_timeout="0.05").send(_body()).end()
            assert engine.engine.snapshot().queued == 0
            assert _counts(busy.app) == (0, 0, 0)
            await busy.open()
            assert await Asking(busy.app).send(_body()).end()
            return reply, busy.requests - before

    reply, computed = engine.run(scenario())
    assert _problem(reply) == (503, "deadline-exceeded")
    assert computed == 2  # what held the device, and the last one


def test_a_time_limit_is_not_used_up_by_the_upload(engine: Running) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        asking = Asking(app, x_request_timeout="0.5").send(_body()[:20], more=True)
        await asyncio.sleep(0.6)
        return await asking.send(_body()[20:]).end()

    assert engine.run(scenario()).status == 200


def test_a_time_limit_holds_while_a_body_is_decoded(engine: Running) -> None:
    x = np.random.default_rng(0).standard_normal((60_000, 3)).tolist()
    body = msgspec.json.encode({"x": x, "idx": [0] * 60_000, "num_segments": 1})

    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        about = {"content_type": "application/json", "x_request_timeout": "0.005"}
        reply = await Asking(app, **about).send(body).end()
        assert _counts(app) == (0, 0, 0)
        return reply

    assert _problem(engine.run(scenario())) == (503, "deadline-exceeded")


def test_a_time_limit_holds_while_the_function_compiles(engine: Running) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        async with SlowCompiler(engine):
            asking = Asking(app, DOT, x_request_timeout="0.05").send(_body(DOT))
            reply = await asking.end()
            assert engine.engine.snapshot().queued == 0
            assert _counts(app) == (0, 0, 0)
            return reply

    assert _problem(engine.run(scenario())) == (503, "deadline-exceeded")


@pytest.mark.parametrize("rows", [5, 200], ids=["queued", "dispatched"])
def test_a_hang_up_frees_the_slot_at_once_and_is_not_computed(engine: Running, rows: int) -> None:
    async def scenario() -> tuple[Reply, int]:
        async with Busy(engine) as busy:
            before = busy.requests
            asking = Asking(busy.app).send(_body(rows=rows))
            await asyncio.sleep(0.01)
            snapshot = engine.engine.snapshot()
            is_dispatched = rows == 200
            assert snapshot.queued == (not is_dispatched)
            assert snapshot.devices[0].requests_under_way == 1 + is_dispatched
            asking.hang_up()
            reply = await asking.end()
            assert engine.engine.snapshot().queued == 0
            assert _counts(busy.app) == (0, 0, 0)
            await busy.open()
            assert (await Asking(busy.app).send(_body()).end()).status == 200
            return reply, busy.requests - before

    reply, computed = engine.run(scenario())
    assert not reply.messages
    assert computed == 2


def test_a_hang_up_is_seen_whenever_it_comes(engine: Running) -> None:
    async def scenario() -> None:
        async with Busy(engine) as busy:
            for pause in (0, 0.005, 0.019, 0.02, 0.021, 0.05):
                asking = Asking(busy.app).send(_body())
                await asyncio.sleep(pause)
                asking.hang_up()
                assert not (await asking.end()).messages
            assert engine.engine.snapshot().queued == 0

    engine.run(scenario())


@pytest.mark.parametrize("sent", [0, 10, 100])
def test_a_hang_up_in_the_middle_of_an_upload_frees_the_slot(engine: Running, sent: int) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        asking = Asking(app, content_length="1000").send(_body()[:sent], more=True)
        await asyncio.sleep(0.005)
        assert _counts(app) == (1, 1000, 1)
        asking.hang_up()
        reply = await asking.end()
        assert _counts(app) == (0, 0, 0)
        return reply

    assert not engine.run(scenario()).messages


def test_a_request_arrives_until_its_body_is_there(engine: Running) -> None:
    async def scenario() -> None:
        async with Busy(engine) as busy:
            body = _body()
            asking = Asking(busy.app).send(body[:50], more=True)
            await asyncio.sleep(0.005)
            assert _counts(busy.app) == (1, 50, 1)
            asking.send(body[50:])
            await busy.until(queued=1)
            assert _counts(busy.app) == (1, len(body) + 7 * 3 * 4, 0)  # and the answer
            await busy.open()
            assert (await asking.end()).status == 200

    engine.run(scenario())


def _refused(reply: Reply) -> None:
    assert _problem(reply) == (429, "overloaded")
    assert int(reply.header(b"retry-after") or 0) >= 1


def test_one_request_too_many_is_refused_unread_until_there_is_room(engine: Running) -> None:
    async def scenario() -> Reply:
        async with Busy(engine, queue_requests=2) as busy:
            waiting = [Asking(busy.app).send(_body()) for _ in range(2)]
            await busy.until(queued=2)
            refused = await Asking(busy.app).end()
            assert _counts(busy.app)[0] == 2
            waiting[0].hang_up()
            await waiting[0].end()
            third = Asking(busy.app).send(_body())
            await busy.until(queued=2)
            await busy.open()
            for asking in (waiting[1], third):
                assert (await asking.end()).status == 200
            assert busy.app.admission.refused == 1
            return refused

    refused = engine.run(scenario())
    _refused(refused)
    assert refused.received == 0


def test_a_declared_body_that_finds_no_room_is_refused_unread(engine: Running) -> None:
    async def scenario() -> Reply:
        body = _body()
        length = str(len(body))
        both = len(body) + 7 * 3 * 4  # and the answer
        async with Busy(engine, queue_bytes=2 * both) as busy:
            waiting = [Asking(busy.app, content_length=length).send(body) for _ in range(2)]
            await busy.until(queued=2)
            refused = await Asking(busy.app, content_length="1").end()
            await busy.open()
            for asking in waiting:
                assert (await asking.end()).status == 200
            assert (await Asking(busy.app, content_length=length).send(body).end()).status == 200
            return refused

    refused = engine.run(scenario())
    _refused(refused)
    assert refused.received == 0


@pytest.mark.parametrize("parts", [1, 2, 30])
def test_a_body_of_unknown_length_is_refused_once_there_is_no_room(
    engine: Running, parts: int
) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(queue_bytes=len(_body()) - 1), engine.engine)
        asking, body = Asking(app), _body()
        step = -(-len(body) // parts)
        for start in range(0, len(body), step):
            asking.send(body[start : start + step], more=start + step < len(body))
        reply = await asking.end()
        assert _counts(app) == (0, 0, 0)
        return reply

    _refused(engine.run(scenario()))


def test_bytes_of_unknown_length_count_for_those_who_come_after(engine: Running) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(queue_bytes=1000), engine.engine)
        growing = Asking(app).send(b"x" * 600, more=True).send(b"x" * 300, more=True)
        await asyncio.sleep(0.005)
        assert _counts(app) == (1, 900, 1)
        refused = await Asking(app, content_length="101").end()
        growing.hang_up()
        await growing.end()
        assert _counts(app) == (0, 0, 0)
        return refused

    _refused(engine.run(scenario()))


@pytest.mark.parametrize(
    ("body", "status"), [(b"\xc1", 400), (_body(num_segments=-1), 422), (_body(nonsense=1), 422)]
)
def test_a_request_that_is_refused_gives_its_slot_back(
    engine: Running, body: bytes, status: int
) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        reply = await Asking(app, content_length=str(len(body))).send(body).end()
        assert _counts(app) == (0, 0, 0)
        return reply

    assert engine.run(scenario()).status == status


def test_a_request_that_cannot_be_computed_is_refused_before_its_body() -> None:
    with engine_on(1, platform="cpu") as engine:

        async def scenario() -> Reply:
            await engine.engine.stop()
            app = create_app(Settings(), engine.engine)
            reply = await Asking(app).end()
            assert _counts(app) == (0, 0, 0)
            return reply

        reply = engine.run(scenario())
    assert _problem(reply) == (503, "not-ready")
    assert reply.received == 0


@pytest.mark.parametrize(("encoding", "rows"), [("json", 5), ("json", 20_000), ("msgpack", 50_000)])
def test_bodies_of_every_size_and_encoding_are_served(
    engine: Running, encoding: str, rows: int
) -> None:
    drawn = case(SUM, rows=rows)
    if encoding == "msgpack":
        body, content_type = wire.packb(drawn.fields), wire.MEDIA_TYPE
    else:
        lists = {"x": drawn.operands["x"].tolist(), "idx": drawn.idx.tolist(), "num_segments": 7}
        body, content_type = msgspec.json.encode(lists), "application/json"

    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        about = {"content_type": content_type, "accept": wire.MEDIA_TYPE}
        return await Asking(app, **about).send(body).end()

    reply = engine.run(scenario())
    assert_bits_equal(wire.unpackb(reply.body), library(drawn.call()))


class Body:
    """A body that is known to be gone when nobody holds it any more."""

    def __init__(self, content: bytes) -> None:
        self._array = np.frombuffer(content, np.uint8).copy()
        self._left = weakref.ref(self._array)

    def take(self) -> memoryview:
        """Give it away."""
        view = self._array.data
        del self._array
        return view

    @property
    def is_gone(self) -> bool:
        """Whether nobody holds it."""
        return self._left() is None


def _oom() -> None:
    raise MemoryError


@pytest.mark.parametrize("rows", [5, 50_000])
@pytest.mark.parametrize(
    ("more", "status"), [({}, 200), ({"num_segments": -1}, 422), ({"x": _oom}, 507)]
)
def test_a_request_keeps_nothing_of_its_body_however_it_ends(
    engine: Running, monkeypatch: pytest.MonkeyPatch, rows: int, more: dict[str, Any], status: int
) -> None:
    if "x" in more:
        submit, more = engine.engine.submit, {}
        monkeypatch.setattr(
            engine.engine, "submit", lambda call, exchange: submit(acting(call, _oom), exchange)
        )
    body = Body(_body(rows=rows, **more))

    async def scenario() -> Reply:
        app = create_app(Settings(), engine.engine)
        return await Asking(app).send(body.take()).end()

    gc.disable()  # a body is not to wait for it
    try:
        assert engine.run(scenario()).status == status
        deadline = time.monotonic() + 5
        while not body.is_gone:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gc.enable()


def test_a_request_that_was_watched_for_a_hang_up_keeps_nothing_of_its_answer(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, kept = engine.engine.submit, []

    def slow(call: Call, exchange: Exchange) -> Any:
        future = submit(acting(call, lambda: time.sleep(0.1)), exchange)
        future.add_done_callback(lambda done: kept.append(weakref.ref(done.result()["value"])))
        return future

    monkeypatch.setattr(engine.engine, "submit", slow)

    async def scenario() -> Reply:
        return await Asking(create_app(Settings(), engine.engine)).send(_body()).end()

    gc.disable()  # an answer is not to wait for it
    try:
        assert engine.run(scenario()).status == 200
        deadline = time.monotonic() + 5
        while kept[0]() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gc.enable()


def test_bodies_that_nobody_waits_for_do_not_take_more_and_more_threads(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = [], threading.Event()

    def slow(*_: Any) -> Any:
        begun.append(1)
        assert go.wait(60)
        raise MalformedBodyError("too late")

    monkeypatch.setattr("segops_service.body.decode", slow)
    content = bytes(100_000)

    async def scenario() -> None:
        app = create_app(Settings(), engine.engine)
        for _ in range(3):
            asked = [Asking(app, x_request_timeout="0.1").send(content) for _ in range(40)]
            for asking in asked:
                assert _problem(await asking.end()) == (503, "deadline-exceeded")

    try:
        engine.run(scenario())
    finally:
        go.set()
    assert 0 < len(begun) <= 40


@pytest.mark.parametrize("rows", [5, 50_000])
def test_an_answer_counts_until_it_is_read(engine: Running, rows: int) -> None:
    async def scenario() -> None:
        app = create_app(Settings(), engine.engine)
        drawn = case(SUM, rows=rows)
        body = wire.packb({**drawn.fields, "want": ["vjp"], "cotangent": drawn.cotangent})
        asking = Asking(app).send(body)
        asking.reads.clear()
        for _ in range(2000):
            if asking.reply.messages:
                break
            await asyncio.sleep(0.001)
        assert _counts(app) == (1, len(body) + rows * 12, 0)
        asking.reads.set()
        reply = await asking.end()
        assert _counts(app) == (0, 0, 0)
        # What is large ends with a message of its own, which a server sends when the rest is read.
        assert bool(reply.messages[-1]["body"]) == (rows == 5)
        assert_bits_equal(wire.unpackb(reply.body), library(drawn.call("vjp")))

    engine.run(scenario())


def test_a_large_answer_to_a_small_request_finds_room_or_is_refused(engine: Running) -> None:
    async def scenario() -> Reply:
        app = create_app(Settings(queue_bytes=100_000), engine.engine)
        assert (await Asking(app).send(_body(num_segments=8000)).end()).status == 200
        reply = await Asking(app).send(_body(num_segments=9000)).end()
        assert _counts(app) == (0, 0, 0)
        return reply

    _refused(engine.run(scenario()))


def test_clients_that_give_up_do_not_hold_up_those_who_come_after() -> None:
    large = case("segmented_rms_norm", "float64", rows=200_000, segments=1000)
    body = wire.packb({**large.all_fields, "want": ["value", "vjp", "jvp", "hvp"]})
    with serving(Settings()) as client:

        def give_up(_: int) -> bool:
            try:
                client.post("/v1/segmented_rms_norm", content=body, headers=MSGPACK, timeout=0.01)
            except httpx.TimeoutException:
                return True
            return False

        with ThreadPoolExecutor(20) as pool:
            assert any(pool.map(give_up, range(100)))
        began = time.monotonic()
        for _ in range(10):
            assert post(client, SUM, **case(SUM).fields)
        assert time.monotonic() - began < 5
        status = client.get("/v1/status").json()
        assert status["queue"]["requests"] == 0, status


def test_many_requests_at_once_share_launches_and_all_get_their_own_answer() -> None:
    with serving(Settings()) as client:

        def ask(seed: int) -> None:
            drawn = case(MEAN, rows=20 + seed % 50, segments=1 + seed % 9, seed=seed)
            assert_bits_equal(post(client, MEAN, **drawn.fields), library(drawn.call()))

        for seed in range(3):
            ask(seed)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(200)))
        devices = client.get("/v1/status").json()["devices"]
        assert sum(device["requests"] for device in devices) == 203
        assert np.isfinite([device["compute_seconds"] for device in devices]).all()
