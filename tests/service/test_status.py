"""The status says what is going on, and what nobody would see otherwise."""

import json
import threading
import time
from collections.abc import Iterator

import httpx

from segops_client import wire
from segops_service import Settings
from segops_service.admission import Admission
from segops_service.status import status
from tests.service.helpers import MSGPACK, case, post
from tests.service.snapshots import Still, device


def test_the_numbers_of_the_snapshot_and_the_admission_are_told() -> None:
    settings = Settings(queue_requests=9, queue_bytes=1000)
    admission = Admission(settings.queue_requests, settings.queue_bytes)
    engine = Still(queued=3, devices=(device(0, requests_under_way=4), device(1, state="dead")))
    with admission.enter(100), admission.enter(50) as slot:
        slot.arrived()
        told = status(settings, engine, admission)
    assert told["queue"] == {
        "requests": 2,
        "max_requests": 9,
        "bytes": 150,
        "max_bytes": 1000,
        "arriving": 1,
        "waiting": 3,
        "refused": 0,
    }
    assert (told["ready"], told["obstacle"], told["in_flight"]) == (True, None, 4)
    assert [(entry["id"], entry["state"]) for entry in told["devices"]] == [
        (0, "ready"),
        (1, "dead"),
    ]
    assert told["devices"][0]["memory_used_bytes"] is None
    assert told["cache"]["capacity"] == 256
    assert json.loads(json.dumps(told)) == told


def test_an_obstacle_is_named() -> None:
    told = status(Settings(), Still(obstacle="no GPU"), Admission(1, 1))
    assert (told["ready"], told["obstacle"], told["devices"]) == (False, "no GPU", [])


def test_a_server_counts_what_it_computed(client: httpx.Client) -> None:
    before = client.get("/v1/status").json()
    drawn = case("segmented_sum", rows=11)
    post(client, "segmented_sum", **drawn.fields)
    after = client.get("/v1/status").json()

    def made(name: str) -> float:
        return sum(device[name] for device in after["devices"]) - sum(
            device[name] for device in before["devices"]
        )

    assert {device["state"] for device in after["devices"]} == {"ready"}
    assert (made("requests"), made("rows")) == (1, 11)
    assert made("compute_seconds") > 0
    assert after["queue"]["requests"] == after["in_flight"] == 0


def test_an_upload_is_seen_while_it_arrives(client: httpx.Client) -> None:
    body = wire.packb(case("segmented_sum").fields)
    seen, go = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        yield body[:10]
        seen.set()
        assert go.wait(30)
        yield body[10:]

    def upload() -> None:
        client.post("/v1/segmented_sum", content=chunks(), headers=MSGPACK)

    thread = threading.Thread(target=upload)
    thread.start()
    assert seen.wait(30)
    deadline = time.monotonic() + 30
    while (queue := client.get("/v1/status").json()["queue"])["arriving"] == 0:
        assert time.monotonic() < deadline, queue
    go.set()
    thread.join()
    assert (queue["requests"], queue["arriving"], queue["waiting"]) == (1, 1, 0)
    assert client.get("/v1/status").json()["queue"]["requests"] == 0
