"""Leadership by Lease, with terms, judged by local monotonic time only.

    acquire() ──▶ leader of a term ──▶ hold() renews ──▶ returns why leadership was lost

What makes it safe:
- Every write is a compare-and-swap on the Lease's version.
- A leader's time counts from the *send* of its last successful renewal, a candidate's from when it
  *saw* that renewal. So a leader ends, by its own clock, before a candidate takes over.
- A candidate waits the whole duration since it last saw the Lease change, plus a margin for clock
  drift, whatever times are written in it. A Lease seen for the first time counts as renewed just
  now, and so does a missing one (it may have been deleted under a living leader). Only a Lease
  without a holder is taken at once.
- Leadership that was lost never comes back: the host ends the process.

A leader recreates a deleted Lease, with its labels and annotations, but not at once: uninstalling
Weft deletes the Lease and ends the leader, and must not find a Lease recreated in between.

A limit: a candidate reads the Lease every two seconds. If the Lease is deleted, taken by a second
candidate and deleted again between two reads of the first candidate, the first has seen it missing
all the while, and leads before the second candidate's time is over.
"""

import logging
import math

import msgspec

from weft.kube.client import JSON, MERGE_PATCH, ApiClient
from weft.kube.clock import rfc3339_micro
from weft.kube.codec import LEASES
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.structs import Lease
from weft.model import BadInputError

log = logging.getLogger("weft.kube")

MOST_DURATION_S = 10
_MISSING = "missing"
_TRIES = 3


class LeaseOptions(msgspec.Struct, frozen=True):
    """Settings of the lease, with reasons.

    `duration_s`: how long candidates wait for a dead leader; whole seconds, at most 10.
    `renew_s`: time between renewals; three may fail in a row.
    `request_timeout_s`: limit of one renewal, which must leave time for the next.
    `margin_s`: how far the clocks of two processes may drift apart during `duration_s`.
    """

    namespace: str = "kube-system"
    name: str = "weft"
    duration_s: int = 10
    renew_s: float = 2
    request_timeout_s: float = 2
    margin_s: float = 0.5

    def check(self) -> None:
        """Raise `BadInputError` for settings that cannot be safe."""
        if not 1 <= self.duration_s <= MOST_DURATION_S:
            what = f"{self.duration_s} must be from 1 to {MOST_DURATION_S}"
            raise BadInputError("lease.duration_s", what)
        if self.renew_s + self.request_timeout_s + self.margin_s >= self.duration_s:
            raise BadInputError(
                "lease.renew_s",
                f"a renewal after {self.renew_s} s may take {self.request_timeout_s} s, which "
                f"leaves no time of the lease's {self.duration_s} s; renew sooner",
            )


class LeaseObservation:
    """A candidate's view of a Lease, and since when the Lease is unchanged. Pure. `alive`: the
    Lease was seen to change, so a process holds it now or did a moment ago; the holder of an
    unchanged Lease may be dead."""

    def __init__(self, margin_s: float) -> None:
        self.term = 0
        self.alive = False
        self._margin_s = margin_s
        self._version = ""
        self._at = 0.0
        self._held_s = MOST_DURATION_S

    def see(self, lease: Lease, now: float) -> None:
        """Note the Lease as it was read at time `now`."""
        if lease.metadata.resource_version != self._version:
            self._at, self.alive = now, bool(self._version)
        spec, self._version = lease.spec, lease.metadata.resource_version
        self.term = max(self.term, spec.lease_transitions or 0)
        self._held_s = 0
        if spec.holder_identity:
            self._held_s = spec.lease_duration_seconds or MOST_DURATION_S

    def miss(self, now: float) -> None:
        """Note that the Lease is missing; its holder, if any, may not have noticed yet."""
        if self._version != _MISSING:
            self._at = now
        self._held_s, self._version = MOST_DURATION_S, _MISSING

    def free_in_s(self, now: float) -> float:
        """Return the seconds until the Lease may be taken; 0 if it may be taken now."""
        return max(0.0, self._at + self._held_s + self._margin_s - now) if self._held_s else 0.0


class Elector:
    """One candidate for leadership. `identity` must be new for every process; `term` increases with
    every leader. `failing` is why the lease could not be read or written last, "" if it could."""

    def __init__(
        self, client: ApiClient, identity: str, options: LeaseOptions | None = None
    ) -> None:
        self.options = options or LeaseOptions()
        self.options.check()
        self.identity = identity
        self.term = 0
        self.holder = ""
        self.failing = ""
        self._client = client
        self._clock = client.clock
        self._observed = LeaseObservation(self.options.margin_s)
        self._version = ""
        self._marks: dict[str, dict[str, str]] = {}
        self._missing_since = math.inf
        self._expires_at = -math.inf

    # --- what the host asks ---

    @property
    def leading(self) -> bool:
        """True if this process is the leader, by its own clock."""
        return self._clock.monotonic() < self._expires_at

    @property
    def other(self) -> str:
        """Return the other leader that this process has seen; "" if none is known."""
        if self.leading or self.holder == self.identity or not self._observed.alive:
            return ""
        return self.holder if self._observed.free_in_s(self._clock.monotonic()) > 0 else ""

    def may_bind(self, seconds: float) -> bool:
        """Return True if a write that takes up to `seconds` ends before the lease does."""
        return self._clock.monotonic() + seconds + self.options.margin_s < self._expires_at

    # --- becoming and staying leader ---

    async def acquire(self) -> int:
        """Wait until this process leads; return the number of its term."""
        if self.term:
            raise RuntimeError("lost leadership cannot be regained: end the process")
        while True:
            try:
                won = await self._try()
                self.failing = ""
                if won:
                    return self.term
                wait = self._observed.free_in_s(self._clock.monotonic())
            except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
                wait = self.options.renew_s
                self._fails(error)
            jitter = 0.5 + 0.5 * self._client.rng.random()
            await self._clock.sleep(min(wait + 0.05, self.options.renew_s) * jitter)

    async def hold(self) -> str:
        """Renew until leadership is lost, and say why. The caller must then end the process."""
        while True:
            wait = self.options.renew_s * (0.8 + 0.2 * self._client.rng.random())
            await self._clock.sleep(wait / 4 if self.failing else wait)
            if not self.leading:
                why = self.failing or "this process did not run for a while"
                return self._lose(f"the lease ran out: {why}")
            try:
                taken_by = await self._renew()
            except (ApiError, LostError, NotSentError, msgspec.DecodeError) as error:
                self._fails(error)
                continue
            self.failing = ""
            if taken_by:
                return self._lose(f"{taken_by} took the lease")

    async def release(self) -> None:
        """Give the lease back, so that the next leader need not wait. Call it only after the last
        write ended."""
        if not self.leading:
            return
        self._expires_at = -math.inf
        body = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
        try:
            for _ in range(_TRIES):
                try:
                    await self._patch(body)
                    return
                except ConflictError:  # a renewal that was cut short may have been written
                    if (await self._read()).spec.holder_identity != self.identity:
                        return
        except (ApiError, LostError, NotSentError):
            return  # the next leader then waits for the lease to expire

    # --- inner workings ---

    def _fails(self, error: Exception) -> None:
        """Log an error once while it stays the same, and keep it in `failing`."""
        if str(error) != self.failing:
            self.failing = str(error)
            log.warning("lease %s/%s: %s", self.options.namespace, self.options.name, error)

    async def _try(self) -> bool:
        """Read the Lease and take it if it is free; return True if this process now leads."""
        try:
            lease = await self._read()
        except NotFoundError:
            self._observed.miss(self._clock.monotonic())
            self.holder = ""
            if self._observed.free_in_s(self._clock.monotonic()) > 0:
                return False
            return await self._create(self._observed.term + 1)
        is_own = lease.spec.holder_identity == self.identity  # an earlier answer was lost
        if not is_own and self._observed.free_in_s(self._clock.monotonic()) > 0:
            return False
        term = self._observed.term + (0 if is_own else 1)
        now = self._now()
        spec = {"acquireTime": now, "renewTime": now, "leaseTransitions": term, **self._claim()}
        sent_at = self._clock.monotonic()
        try:
            await self._patch(spec)
        except (ConflictError, NotFoundError):
            return False
        self._won(term, sent_at)
        return True

    async def _renew(self) -> str:
        """Renew once; return the identity of another holder, "" if there is none."""
        for _ in range(_TRIES):
            sent_at = self._clock.monotonic()
            try:
                await self._patch({"renewTime": self._now(), **self._claim()})
            except (ConflictError, NotFoundError) as error:
                if isinstance(error, NotFoundError):
                    if not self._may_make_again():
                        raise
                    if await self._create(self.term):
                        return ""
                # Another client wrote it, or it was our own renewal whose answer was lost.
                lease = await self._read()
                if lease.spec.holder_identity != self.identity:
                    return lease.spec.holder_identity or "another client that names no holder"
                continue
            self._expires_at = sent_at + self.options.duration_s
            self._missing_since = math.inf
            return ""
        raise LostError("the lease is being changed all the time")

    def _may_make_again(self) -> bool:
        """Return True if the Lease has been missing for half its duration, or leadership would end
        before another try."""
        now, options = self._clock.monotonic(), self.options
        self._missing_since = min(self._missing_since, now)
        needed_s = options.renew_s / 4 + options.request_timeout_s + options.margin_s
        waited = now >= self._missing_since + options.duration_s / 2
        return waited or now + needed_s >= self._expires_at

    async def _read(self) -> Lease:
        path = LEASES.of(self.options.namespace, self.options.name)
        lease = self._written(await self._call("GET", path))
        self._observed.see(lease, self._clock.monotonic())
        self.holder = lease.spec.holder_identity or ""
        return lease

    async def _create(self, term: int) -> bool:
        now = self._now()
        spec = {"acquireTime": now, "renewTime": now, "leaseTransitions": term, **self._claim()}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.options.name,
                "namespace": self.options.namespace,
                **self._marks,
            },
            "spec": spec,
        }
        sent_at = self._clock.monotonic()
        path = LEASES.of(self.options.namespace)
        try:
            self._written(await self._call("POST", path, msgspec.json.encode(body)))
        except ConflictError:
            return False
        self._missing_since = math.inf
        self._won(term, sent_at)
        return True

    async def _patch(self, spec: dict[str, object]) -> None:
        """Patch with compare-and-swap: 409 if the Lease changed since it was last read or
        written."""
        body = msgspec.json.encode({"metadata": {"resourceVersion": self._version}, "spec": spec})
        path = LEASES.of(self.options.namespace, self.options.name)
        self._written(await self._call("PATCH", path, body))

    def _written(self, answer: bytes) -> Lease:
        """Decode the Lease in the API server's answer, and keep its version and labels."""
        lease = LEASES.decode(answer)
        meta = lease.metadata
        self._version = meta.resource_version
        marks = (("labels", meta.labels), ("annotations", meta.annotations))
        self._marks = {field: mark for field, mark in marks if mark}
        return lease

    async def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        return await self._client.call(
            method,
            path,
            body,
            content_type=MERGE_PATCH if method == "PATCH" else JSON,
            timeout_s=self.options.request_timeout_s,
            attempts=1,
            urgent=True,
        )

    def _claim(self) -> dict[str, object]:
        return {"holderIdentity": self.identity, "leaseDurationSeconds": self.options.duration_s}

    def _won(self, term: int, sent_at: float) -> None:
        self.term, self.holder = term, self.identity
        self._expires_at = sent_at + self.options.duration_s

    def _lose(self, why: str) -> str:
        self._expires_at = -math.inf
        return why

    def _now(self) -> str:
        return rfc3339_micro(self._clock.wall())
