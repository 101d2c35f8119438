"""Decisions of a running scheduler on record: replayed alike, and a full disk ends no scheduler."""

from pathlib import Path

import pytest
from test_scheduler_process import add_node, add_pod, node_of, plays, until

from weft.framework import Profile
from weft.kube.client import ApiClient
from weft.kube.config import Endpoint
from weft.kube.credentials import Fixed
from weft.live.cluster import Cluster
from weft.model import BadInputError
from weft.policies.catalog import built_in
from weft.policies.fgd import Fgd
from weft.record import Header, PolicyUse, ProfileUse, read, replay
from weft.scheduler.recording import Recording
from weft.testing.api_server import FakeApiServer

HEADER = Header([ProfileUse("weft", [PolicyUse("fgd")])])


def test_what_a_running_scheduler_decided_is_replayed_alike(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text("an older file")

    @plays
    async def story() -> None:
        async with FakeApiServer() as server, ApiClient(Endpoint(server.url, Fixed())) as client:
            add_node(server)
            live = Cluster(client, [Profile("weft", [Fgd()])])
            recording = Recording(live, HEADER, path)
            assert str(path) in await recording.start()
            await live.start()
            await live.lead(afresh=False)
            for number in range(9):
                add_pod(server, f"p{number}")
            await until(lambda: sum(bool(node_of(server, f"p{n}")) for n in range(9)) == 8)
            await live.stop()
            await recording.close()

    story()
    verdict = replay(*read(path), built_in().create)
    assert verdict.identical, verdict
    assert verdict.decisions >= 9
    assert (tmp_path / "decisions.jsonl.previous").read_text() == "an older file"


def test_a_file_that_cannot_be_written_is_told_before_anything_begins(tmp_path: Path) -> None:
    @plays
    async def story() -> None:
        async with FakeApiServer() as server, ApiClient(Endpoint(server.url, Fixed())) as client:
            live = Cluster(client, [Profile("weft", [Fgd()])])
            await Recording(live, HEADER, tmp_path / "no" / "such" / "folder").start()

    with pytest.raises(BadInputError, match="--decisions"):
        story()


def test_a_disk_that_fails_ends_the_record_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    @plays
    async def story() -> None:
        async with FakeApiServer() as server, ApiClient(Endpoint(server.url, Fixed())) as client:
            add_node(server)
            live = Cluster(client, [Profile("weft", [Fgd()])])
            recording = Recording(live, HEADER, path)
            await recording.start()
            path.unlink()
            path.mkdir()  # nothing can be appended to a folder
            await live.start()
            await live.lead(afresh=False)
            add_pod(server, "p")
            await until(lambda: bool(recording.failed))
            add_pod(server, "q")
            await until(lambda: node_of(server, "q") == "n")
            await live.stop()
            await recording.close()

    story()
