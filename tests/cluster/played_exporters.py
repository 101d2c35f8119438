"""Played exporters, the real Prometheus that scrapes them, and what policies see of it.

One Prometheus serves a whole file of tests: it waits 5 s before it scrapes anything, which no
setting changes. Each test has exporters of its own there, told apart by the label `stage`, which
goes into every query; so no test sees what another one played.
"""

import asyncio
import datetime
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from certificates import Authority
from led_cluster import led
from processes import Server, StartStop, free_ports

from fakes.api_server import FakeApiServer
from fakes.exporter import FakeExporter, PlayedGpu
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, TelemetryLoopOptions
from weft.core.framework import Profile
from weft.core.framework.signals import SignalsView
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.clock import SystemClock
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.testing import AGENT_BY_NAME

CARD_MIB = 16_384
PATIENCE_S = 30.0
SCRAPE_S = 0.5
STAGES = 24  # how many there are for all tests of a file
USER, PASSWORD = "weft", "secret"
_HASHED = "$2b$04$5xcBfeKQtzyvIq6cEWwqS.ltmOWXwXDodRnvk3wZihuOj/3E14WTW"  # of "secret"


class Site(StartStop):
    """Two Prometheus servers over all stages: one guarded, one that lets everybody in.

    `guarded` wants TLS, a client certificate of `authority`, a user and a password. `open`
    listens on every address, so that an API server may lead to it.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "certificates")
        self.stages = [FakeExporter() for _ in range(STAGES)]
        self._begun: list[FakeExporter] = []
        self._free = iter(range(STAGES))
        self.port, self.open_port = free_ports(2)
        (folder / "password").write_text(PASSWORD)
        self.client = self.authority.user("weft")
        self.guarded = self._server(program, "guarded", f"127.0.0.1:{self.port}", self._web())
        self.open = self._server(program, "open", f"0.0.0.0:{self.open_port}", {})

    def start(self) -> None:
        """Exporters and both servers answer."""
        for stage in self.stages:
            self._begun.append(stage)
            stage.__enter__()
        self.guarded.start()
        self.open.start()
        self.open.wait_ready(lambda: ready(self.open_url))

    def stop(self) -> None:
        """End the servers, then what they scrape."""
        self.guarded.kill()
        self.open.kill()
        with ThreadPoolExecutor(STAGES) as at_once:  # each takes half a second
            list(at_once.map(lambda stage: stage.__exit__(), self._begun))

    def stage(self) -> tuple[int, FakeExporter]:
        """One that nobody has played on."""
        number = next(self._free, STAGES)
        assert number < STAGES, "more tests than stages: raise STAGES"
        return number, self.stages[number]

    @property
    def open_url(self) -> str:
        return f"http://127.0.0.1:{self.open_port}"

    def options(self, **other: object) -> PrometheusOptions:
        """How the guarded one is asked by those it lets in."""
        how: dict[str, object] = {
            "url": f"https://127.0.0.1:{self.port}",
            "username": USER,
            "password_file": str(self.folder / "password"),
            "authority_file": str(self.authority.pair.certificate),
            "certificate_file": str(self.client.certificate),
            "key_file": str(self.client.key),
            "timeout_s": 1,
        }
        return PrometheusOptions(**(how | other))  # type: ignore[arg-type]

    def _web(self) -> dict[str, object]:
        pair = self.authority.server("prometheus")
        return {
            "tls_server_config": {
                "cert_file": str(pair.certificate),
                "key_file": str(pair.key),
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_ca_file": str(self.authority.pair.certificate),
            },
            "basic_auth_users": {USER: _HASHED},
        }

    def _server(self, program: str, name: str, listen: str, web: object) -> Server:
        folder = self.folder / name
        folder.mkdir()
        own = {"pod": "dcgm-exporter-1", "namespace": "monitoring", "container": "exporter"}
        targets = [
            {"targets": [stage.address], "labels": own | {"stage": str(number)}}
            for number, stage in enumerate(self.stages)
        ]
        config, web_config = folder / "prometheus.yml", folder / "web.yml"
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"},
                    "scrape_configs": [{"job_name": "dcgm-exporter", "static_configs": targets}],
                }
            )
        )
        web_config.write_text(yaml.safe_dump(web))
        return Server(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.config.file={web_config}",
                f"--web.listen-address={listen}",
                "--log.level=warn",
            ],
            folder / "prometheus.log",
        )


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Played:
    """The exporters that one test plays: of its own stages, which play nothing at first."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.exporters: list[FakeExporter] = []
        self._numbers: list[int] = []
        self.more(1)
        self.exporter = self.exporters[0]

    def more(self, count: int) -> None:
        """So many exporters more, before anybody looks."""
        for _ in range(count):
            number, exporter = self.site.stage()
            self._numbers.append(number)
            self.exporters.append(exporter)

    @property
    def selector(self) -> str:
        """The label selector that finds their series alone."""
        return f'stage=~"{"|".join(map(str, self._numbers))}"'

    def clear(self) -> None:
        """Play nothing any more."""
        for one in self.exporters:
            one.gpus, one.mood = [], "good"


def cards() -> list[PlayedGpu]:
    """Node a by UUIDs, node b without."""
    return [
        PlayedGpu("a", 0, "GPU-a0", used_mib=4_000, free_mib=12_000, sm_active=0.25),
        PlayedGpu("a", 1, "GPU-a1", used_mib=1_000, free_mib=15_000, util_percent=50),
        PlayedGpu("b", 0, used_mib=2_000, free_mib=14_000, dram_active=0.5),
    ]


# --- what policies see ---------------------------------------------------------------------------


class ShiftedClock(SystemClock):
    """The machine's clock, but for a time of day that is `ahead_s` off."""

    ahead_s = 0.0

    def wall(self) -> datetime.datetime:
        return super().wall() + datetime.timedelta(seconds=self.ahead_s)


class Scene:
    """Everything that a test touches."""

    def __init__(
        self, telemetry_loop: TelemetryLoop, live: EngineCluster, clock: ShiftedClock
    ) -> None:
        self.telemetry_loop, self.live, self.clock = telemetry_loop, live, clock

    def of(self, column: str) -> dict[tuple[str, int], tuple[float, int]]:
        """(value, freshness) by GPU, as policies see it in the engine."""
        view: SignalsView = self.live.engine.signals
        values, fresh = view.over(self.live.engine.ledger.table, column)
        gpus = [(n.name, g.index) for n in self.live.engine.ledger.table.nodes for g in n.gpus]
        return dict(zip(gpus, zip(values.tolist(), fresh.tolist(), strict=True), strict=True))

    def ages(self, column: str = "memory_used_mib.last") -> list[int]:
        return [age for _, age in self.of(column).values()]

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Look, as ticks do, until it is so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            await self.telemetry_loop.refresh()
            if wanted():
                return
            assert loop.time() < deadline, (
                self.of("memory_used_mib.last"),
                self.telemetry_loop.errors,
            )
            await asyncio.sleep(0.1)


def node(name: str, uuids: list[str]) -> dict[str, object]:
    gpus = [
        {"index": i, "memory_mib": CARD_MIB, **({"uuid": uuid} if uuid else {})}
        for i, uuid in enumerate(uuids)
    ]
    return {
        "metadata": {
            "name": name,
            "annotations": {
                "weft.dev/inventory": json.dumps({"gpus": gpus}),
                **AGENT_BY_NAME,
            },
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def resident(server: FakeApiServer, name: str) -> str:
    """A pod on GPU 0 of node a; its UID."""
    asks = {"limits": {"weft.dev/gpu-memory": "3000"}}
    server.add(
        "pods",
        {
            "metadata": {"name": name, "namespace": "d"},
            "spec": {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]},
        },
    )
    uid: str = server.get("pods", name, "d")["metadata"]["uid"]
    mark = {"pod": uid, "node": "a", "shares": [[0, 0, 3000, 0, ""]]}
    server.update(
        "pods",
        name,
        {
            "metadata": {"annotations": {"weft.dev/placement": json.dumps(mark)}},
            "spec": {"nodeName": "a"},
        },
        "d",
    )
    return uid


@asynccontextmanager
async def scene(
    played: Played, pods: tuple[str, ...] = (), options: PrometheusOptions | None = None
) -> AsyncIterator[Scene]:
    """A cluster with the nodes a and b on Weft's fake API, looked at through the guarded server.

    Its GPUs are `cards()`, but where the test plays others already.
    """
    clock = ShiftedClock()
    if not any(exporter.gpus for exporter in played.exporters):
        played.exporter.gpus = cards()
    async with FakeApiServer() as api:
        api.add("nodes", node("a", ["GPU-a0", "GPU-a1"]))
        api.add("nodes", node("b", [""]))
        for pod in pods:
            resident(api, pod)
        async with ApiClient(Endpoint(api.url, FixedCredentials()), clock=clock) as client:
            live = led(client, [Profile("weft", [Fgd()])]).live
            await live.start()
            source = Prometheus(options or played.site.options(selector=played.selector))
            how = TelemetryLoopOptions(interval_s=1, window_s=20, scrape_s=SCRAPE_S, horizon_s=4)
            try:
                yield Scene(TelemetryLoop(live, source, None, how), live, clock)
            finally:
                await source.close()
                await live.stop()
