"""Checks of a cluster by `weft doctor`, from objects read before. Reads no Secrets."""

import datetime
import ssl
from collections.abc import Collection, Iterator

import msgspec

from weft.cluster.admission.protection import Writers, protection_policies
from weft.cluster.reading import node_findings as nodes
from weft.cluster.reading import pod_findings as pods
from weft.cluster.reading.claims import claim_findings
from weft.cluster.reading.finding import DoctorFinding, advice, good, wrong
from weft.cluster.reading.reading import ClusterReading
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.services import SERVING_PODS, everything
from weft.model import ObjectMeta
from weft.model.manifest import Api

# --- admission ------------------------------------------------------------------------------------
# Checks Weft's admission policies and its webhook.


POLICIES = tuple(
    policy["metadata"]["name"]
    for policy in protection_policies(Writers())
    if policy["kind"] == "ValidatingAdmissionPolicy"
)
"""Policies without which anyone who may write pods or nodes, or has an agent's token, can assign
GPUs by writing annotations."""
SCHEDULING = "weft-schedule"
_WEBHOOKS = "app.kubernetes.io/name=weft-webhook"
_API = "/apis/admissionregistration.k8s.io/v1"
_CHECK = "admission"
_SOON = datetime.timedelta(days=30)


class NamedObject(Api, frozen=True, gc=False):
    """An API object of which only the name matters."""

    metadata: ObjectMeta = ObjectMeta()


class WebhookClient(Api, frozen=True, gc=False):
    """A webhook's clientConfig: the CA bundle for its certificate, PEM in base64."""

    ca_bundle: bytes = b""


class AdmissionWebhook(Api, frozen=True, gc=False):
    """One entry of a webhook configuration's webhooks."""

    name: str = ""
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(Api, frozen=True, gc=False):
    """A MutatingWebhookConfiguration, with the fields that Weft reads."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: list[AdmissionWebhook] | None = None


_POLICIES = Resource(_API, "validatingadmissionpolicies", NamedObject)
_WEBHOOK_CONFIGURATIONS = Resource(_API, "mutatingwebhookconfigurations", WebhookConfiguration)


async def admission(client: ApiClient) -> list[DoctorFinding]:
    """Check that Weft's policies exist, and that its webhook, if any, is ready with a valid
    certificate."""
    try:
        there = {each.metadata.name for each in await everything(client, _POLICIES)}
        webhooks = await everything(client, _WEBHOOK_CONFIGURATIONS)
    except ApiError as error:
        if error.code not in (403, 404):
            raise
        mend = "run this as a user who may list admission policies and webhooks"
        return [advice(_CHECK, f"not known: {error}", mend)]
    findings = []
    if missing := [name for name in POLICIES if name not in there]:
        text = (
            f"no policy {', '.join(missing)}: anyone who may write pods, or has an agent's token, "
            "can take the GPUs of other pods"
        )
        mend = "weft admission | kubectl apply -f -; helm: admission.enabled=true"
        findings.append(advice(_CHECK, text, mend))
    for each in webhooks:
        if each.metadata.name == SCHEDULING:
            findings += [*await _answers(client), *_certificates(client, each)]
    return findings or [good(_CHECK, "all policies exist")]


async def _answers(client: ApiClient) -> list[DoctorFinding]:
    pods = await everything(client, SERVING_PODS, selector=_WEBHOOKS)
    if any(pod.ready for pod in pods):
        return []
    text = (
        "no pod of weft-webhook is ready: pods that name no scheduler are created as they are, and "
        "default-scheduler binds them"
    )
    mend = "see kubectl get pods -A -l app.kubernetes.io/name=weft-webhook, and its log"
    return [wrong(_CHECK, text, mend)]


def _certificates(client: ApiClient, found: WebhookConfiguration) -> Iterator[DoctorFinding]:
    now = client.clock.wall()
    mend = (
        "delete the Secret weft-webhook-tls, then helm upgrade makes a new one; without helm, "
        "replace its certificate, and the CA in the MutatingWebhookConfiguration weft-schedule"
    )
    for webhook in found.webhooks or ():
        ends = _ends(webhook.client_config.ca_bundle)
        if ends is None:
            continue
        if ends <= now:
            text = f"the certificate of {webhook.name} expired at {ends:%Y-%m-%d}: pods that name "
            text += "no scheduler are created as they are, and default-scheduler binds them"
            yield wrong(_CHECK, text, mend)
        elif ends <= now + _SOON:
            yield advice(
                _CHECK, f"the certificate of {webhook.name} expires at {ends:%Y-%m-%d}", mend
            )


def _ends(bundle: bytes) -> datetime.datetime | None:
    """Return the time at which the first of these certificates expires; None if they cannot be
    read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=bundle.decode("ascii"))
    except (ssl.SSLError, ValueError, msgspec.DecodeError):
        return None
    ends = [str(each["notAfter"]) for each in context.get_ca_certs()]
    if not ends:
        return None
    first = min(map(ssl.cert_time_to_seconds, ends))
    return datetime.datetime.fromtimestamp(first, datetime.UTC)


EXEMPT = ("kube-system", "weft-system")
"""Namespaces whose containers may see all GPUs."""


async def cluster_checks(
    client: ApiClient, read: ClusterReading, names: Collection[str], *, inside: bool = False
) -> list[DoctorFinding]:
    """Check nodes, agents and pods; `names` are Weft's schedulerNames. With `inside` (in an agent's
    pod, without rights to read them), claims and admission policies are not checked."""
    found = [
        nodes.agents_per_node(read),
        *await nodes.heartbeats(client, read),
        nodes.drivers(read),
        nodes.inventories(read),
        nodes.offers(read),
        nodes.runtimes(read),
        nodes.other_resources(read),
        nodes.merged_labels(read),
        *pods.holders(read, names, client.clock.wall()),
        pods.contradicting(read),
        pods.visible_devices(read, EXEMPT),
    ]
    if not inside:
        found += claim_findings(read.claims, read.pods)
        found += await admission(client)
    return found
