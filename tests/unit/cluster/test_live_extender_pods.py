"""Another scheduler's pods that Weft bound as its extender: what they hold ends with them."""

from test_live_pods import pod, view

from weft.core.engine import PodGone
from weft.core.ledger import Ledger
from weft.model import Placement


def test_a_pod_whose_binding_no_watch_showed_is_freed_at_its_end() -> None:
    ledger = Ledger(())
    ledger.adopt(Placement("u", "n"))
    pods = view(ledger=ledger)
    assert pods.update(pod(schedulerName="other")) is None  # its binding may be under way
    ended = pod(schedulerName="other", nodeName="n", phase="Succeeded")
    assert pods.update(ended) == PodGone("u", completed=True)


def test_a_pod_whose_binding_no_watch_showed_is_freed_when_it_is_gone() -> None:
    ledger = Ledger(())
    ledger.adopt(Placement("u", "n"))
    pods = view(ledger=ledger)
    assert pods.update(pod(schedulerName="other")) is None
    assert pods.forget(pod(schedulerName="other")) == PodGone("u")


def test_a_gated_pod_does_not_wait_for_a_node() -> None:
    """Policies that match waiting pods to GPUs would keep one for it that others could have."""
    pods = view()
    pods.update(pod(schedulerName="other"))
    assert [one.metadata.uid for one in pods.unbound()] == ["u"]
    pods.update(pod(schedulerName="other", schedulingGates=[{"name": "quota"}]))
    assert pods.unbound() == []
