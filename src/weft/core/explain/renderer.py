"""Renders an explanation as lines of text, for live clusters and decisions files."""

from msgspec import UNSET

from weft.core.explain.amounts import age_in_words, gpus_in_words
from weft.core.explain.counterfactual import AlternativePlacement, MetricsRead, in_words
from weft.core.explain.explanation import Explanation, ObservedProgress, StuckPod


def lines_of(explanation: Explanation) -> list[str]:
    """Return the explanation as lines; for a recorded decision the reason follows the metrics."""
    decision = explanation.decision
    head = f"{explanation.namespace}/{explanation.name} (UID {explanation.uid}), "
    reason = [f"  {explanation.reason}"] * bool(explanation.reason)
    metrics = _metrics_lines(explanation)
    if decision is not UNSET:
        lines = [
            f"{head}profile {explanation.profile}, attempt {explanation.attempt}, "
            f"decision {decision.record.seq}",
            f"  {explanation.text}",
            *_candidates(explanation),
            *_score_lines(explanation),
            *(f"  {note}" for note in explanation.notes),
            *metrics,
            *reason,
            *_changes(explanation),
        ]
        if decision.other_uids:
            lines.append(
                f"  {len(decision.other_uids)} more pods have this name; ask by UID: "
                + ", ".join(decision.other_uids[:5])
            )
        return lines
    return [
        f"{head}schedulerName {explanation.scheduler_name}",
        f"  {explanation.text}",
        *(reason if explanation.state != "not ours" else ()),
        *_candidates(explanation),
        *_score_lines(explanation),
        *metrics,
        *_progress_lines(explanation.progress),
        *_others_lines(explanation),
        *_changes(explanation),
        *(f"  note: {note}" for note in explanation.notes),
        *_stuck_lines(explanation.stuck),
    ]


def _candidates(explanation: Explanation) -> list[str]:
    lines = []
    if explanation.rescored and explanation.candidates:
        lines.append("  the best nodes now, its own shares counted as free:")
    for number, candidate in enumerate(explanation.candidates):
        role = "next  " if number or explanation.node else "best  "
        role = "chosen" if candidate.node == explanation.node else role
        scores = "".join(f", {name} {score}" for name, score in candidate.scores.items())
        lines.append(f"  {role} {candidate.node}: score {candidate.score}{scores}")
    return lines


def _score_lines(explanation: Explanation) -> list[str]:
    if not explanation.score_parts:
        return []
    head = "  the score of this placement:"
    if explanation.decision is UNSET:
        recorded = f"{explanation.score:,}"
        head = f"  parts of its score computed now; the score at the decision was {recorded}:"
        if not explanation.attempt:
            head = "  parts of its score, computed now:"
    return [head, *(f"    {part}" for part in explanation.score_parts)]


def _metrics_lines(explanation: Explanation) -> list[str]:
    """Return the lines about metrics. On a live cluster they show a decision made again now."""
    read: MetricsRead | None = explanation.metrics
    if read is None:
        return []
    is_now = bool(explanation.node) and explanation.decision is UNSET
    read_at = f"read {read.looked_s:.0f} s before the decision"
    lines = [f"  metrics of GPU {gpu.gpu}, {read_at}: {in_words(gpu)}" for gpu in read.gpus]
    if read.kept_out_gpus:
        gpus = gpus_in_words(read.kept_out_gpus)
        lines.append(f"  metrics keep it off {gpus} that would take it{' now' * is_now}:")
        lines += [f"    - {gpu.node} GPU {gpu.gpu}: {in_words(gpu)}" for gpu in read.kept_out]
    if read.without is not None:
        place = AlternativePlacement(explanation.node, explanation.shares)
        without = "without metrics" + ", decided again now" * is_now
        lines.append(f"  {without}: {_place_in_words(read.without, place)}")
    return lines


def _place_in_words(without: AlternativePlacement, place: AlternativePlacement) -> str:
    if not without.node:
        return "nowhere" if place.node else "nowhere either"
    gpus = sorted({share.gpu for share in without.shares})
    if without.node == place.node and gpus == sorted({share.gpu for share in place.shares}):
        return "the same placement"
    return without.node + (", GPU " + ", ".join(map(str, gpus)) if gpus else "")


def _progress_lines(progress: ObservedProgress | None) -> list[str]:
    """Return the lines about the pod's slowdown by co-residents, and about the applications kept
    off its GPU."""
    if progress is None:
        return []
    lines = []
    if progress.source == "progress":
        lines.append(
            f"  progress: {progress.rate_per_s:.4g} units/s, {progress.alone_per_s:.4g} if alone: "
            f"{progress.slowdown:.2f} times slower, {progress.age_s:.0f} s ago"
        )
    elif progress.source:
        lines.append(
            f"  progress: not reported; by its GPU's SM_ACTIVE {progress.slowdown:.2f} times "
            "slower than alone, an estimate that causes no eviction"
        )
    if progress.p99_ms and progress.slo_ms:
        late = "late" if progress.p99_ms > progress.slo_ms else "in time"
        lines.append(f"  p99 {progress.p99_ms:.4g} ms, SLO {progress.slo_ms:.4g} ms: {late}")
    if progress.bound and progress.windows:
        looks = (
            f"{progress.broken} of the last {progress.windows} window{'s' * (progress.windows > 1)}"
        )
        lines.append(f"  at most {progress.bound:.2f} times slower is allowed; exceeded in {looks}")
    lines += [f"  {progress.withheld}"] * bool(progress.withheld)
    for pair in progress.apart:
        model = f" on {pair.gpu_model}" if pair.gpu_model else ""
        other = pair.application or "pods of no known application"
        time_left = age_in_words(max(0.0, pair.left_s))
        lines.append(f"  kept apart from {other}{model} for another {time_left}")
    return lines + [f"  note: {progress.problem}"] * bool(progress.problem)


def _others_lines(explanation: Explanation) -> list[str]:
    """Return the lines on shares that Weft did not place; GPUs with the same text share a line."""
    if not explanation.others:
        return []
    alike: dict[tuple[str, str], list[int]] = {}
    for share in explanation.others:
        alike.setdefault((share.node, share.text), []).append(share.gpu)
    lines = [
        f"    - {node} GPU {', '.join(map(str, gpus))}: {text}"
        for (node, text), gpus in alike.items()
    ]
    more = ["    - and more on nodes not listed here"] if explanation.others_left_out else []
    return ["  not placed by Weft:", *lines, *more]


def _changes(explanation: Explanation) -> list[str]:
    if explanation.state != "pending" or explanation.candidates:
        return []
    more = [] if explanation.searched else ["  time ran out before every change was tried"]
    if explanation.changes:
        each = [f"    - {change.text}" for change in explanation.changes]
        return ["  it would fit, if you", *each, *more]
    if explanation.searched:
        return ["  no single change of the pod, and no one pod's end, would make it fit"]
    return ["  none of the changes tried would make it fit", *more]


def _stuck_lines(stuck: tuple[StuckPod, ...]) -> list[str]:
    lines = []
    for pod in stuck:
        since = "" if pod.age_s is None else f" for {age_in_words(pod.age_s)}"
        lines.append(
            f"  stuck: {pod.namespace}/{pod.name} holds {gpus_in_words(pod.gpus)} of {pod.node}: "
            f"{pod.why}{since}"
        )
    if any(pod.dead_node for pod in stuck):
        lines.append("  if the node is certainly dead, free its GPUs: kubectl delete pod --force")
    return lines
