"""Checks of what the API server asks when a pod is created: Weft's policies, and its webhook."""

import datetime
import ssl
from collections.abc import Iterator

import msgspec

from weft.cluster.admission.protection import Writers, protection_policies
from weft.cluster.reading.finding import DoctorFinding, advice, good, wrong
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.services import SERVING_PODS, everything
from weft.model import ObjectMeta
from weft.model.manifest import Api

POLICIES = tuple(
    policy["metadata"]["name"]
    for policy in protection_policies(Writers())
    if policy["kind"] == "ValidatingAdmissionPolicy"
)
"""Without these whoever may write a pod or a node, or has an agent's token, says which GPUs are
whose."""
SCHEDULING = "weft-schedule"
_WEBHOOKS = "app.kubernetes.io/name=weft-webhook"
_API = "/apis/admissionregistration.k8s.io/v1"
_CHECK = "admission"
_SOON = datetime.timedelta(days=30)


class NamedObject(Api, frozen=True, gc=False):
    """An object of which only its being there matters."""

    metadata: ObjectMeta = ObjectMeta()


class WebhookClient(Api, frozen=True, gc=False):
    """clientConfig of a webhook: the authority of its certificate, PEM in base64."""

    ca_bundle: bytes = b""


class AdmissionWebhook(Api, frozen=True, gc=False):
    """One entry of webhooks."""

    name: str = ""
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(Api, frozen=True, gc=False):
    """A MutatingWebhookConfiguration."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: list[AdmissionWebhook] | None = None


_POLICIES = Resource(_API, "validatingadmissionpolicies", NamedObject)
_WEBHOOK_CONFIGURATIONS = Resource(_API, "mutatingwebhookconfigurations", WebhookConfiguration)


async def admission(client: ApiClient) -> list[DoctorFinding]:
    """Weft's policies are there; its webhook, if there is one, answers with a good certificate."""
    try:
        there = {each.metadata.name for each in await everything(client, _POLICIES)}
        webhooks = await everything(client, _WEBHOOK_CONFIGURATIONS)
    except ApiError as error:
        if error.code not in (403, 404):
            raise
        mend = "ask as somebody who may list admission policies and webhooks"
        return [advice(_CHECK, f"not known: {error}", mend)]
    findings = []
    if missing := [name for name in POLICIES if name not in there]:
        text = (
            f"no policy {', '.join(missing)}: who may write a pod, or has an agent's token, may "
            "claim GPUs of others"
        )
        mend = "weft admission | kubectl apply -f -; helm: admission.enabled=true"
        findings.append(advice(_CHECK, text, mend))
    for each in webhooks:
        if each.metadata.name == SCHEDULING:
            findings += [*await _answers(client), *_certificates(client, each)]
    return findings or [good(_CHECK, "policies are there")]


async def _answers(client: ApiClient) -> list[DoctorFinding]:
    pods = await everything(client, SERVING_PODS, selector=_WEBHOOKS)
    if any(pod.ready for pod in pods):
        return []
    text = (
        "no pod of weft-webhook is ready: pods that name no scheduler are created as they are, and "
        "default-scheduler binds them"
    )
    mend = "kubectl get pods -A -l app.kubernetes.io/name=weft-webhook, and its log, say why"
    return [wrong(_CHECK, text, mend)]


def _certificates(client: ApiClient, found: WebhookConfiguration) -> Iterator[DoctorFinding]:
    now = client.clock.wall()
    mend = (
        "helm upgrade makes a new one, once the Secret weft-webhook-tls is deleted; else put one "
        "there, and its authority into the MutatingWebhookConfiguration weft-schedule"
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
            yield advice(_CHECK, f"the certificate of {webhook.name} ends {ends:%Y-%m-%d}", mend)


def _ends(bundle: bytes) -> datetime.datetime | None:
    """When the first of these authorities ends; None where nobody can say."""
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
