"""Examples at the end of each command's help. A test parses each."""

from typing import Any

EXAMPLES: dict[str, tuple[str, ...]] = {
    "simulate": (
        "weft simulate --nodes nodes.csv --pods pods.csv --policy fgd --policy best-fit",
        "weft simulate --nodes nodes.csv --pods pods.csv --policy fgd --seeds 10 --report out",
        "weft simulate --snapshot cluster.json --policy least-stranding",
    ),
    "policies": ("weft policies", "weft policies -o json"),
    "parse": ("weft parse deployment.yaml", "kubectl get pods -o yaml | weft parse -"),
    "scheduler": (
        "weft scheduler --kubeconfig ~/.kube/config",
        "weft scheduler --config weft.yaml --extender-port 39999",
    ),
    "agent": ("weft agent --node-name $(hostname)", "weft agent --devices played.yaml"),
    "admission": (
        "weft admission | kubectl apply -f -",
        "weft admission --agent system:serviceaccount:weft-system:weft-agent",
    ),
    "webhook": ("weft webhook --certificate-file tls.crt --key-file tls.key",),
    "adopt": ("weft adopt --dry-run", "weft adopt --undo --yes"),
    "shadow": ("weft shadow --config weft.yaml --for 3600",),
    "console": ("weft console", "weft console --demo", "weft console --decisions day.jsonl"),
    "status": ("weft status", "weft status --context staging -o json"),
    "inspect": ("weft inspect", "weft inspect -d node-1", "weft inspect -w --interval 5"),
    "queues": ("weft queues", "weft queues --snapshot snapshot.json -o json"),
    "usage": (
        "weft usage decisions.jsonl",
        "weft usage --prometheus http://prometheus:9090 --hours 720 --by workload -o html",
        "weft usage decisions.jsonl --by label:team --from 1d --to 2d --prices prices.yaml -o csv",
    ),
    "doctor": ("weft doctor", "weft doctor --machine"),
    "snapshot": (
        "weft snapshot cluster.json",
        "kubectl get nodes,pods -A -o json | weft snapshot cluster.json --from -",
    ),
    "replay": ("weft replay decisions.jsonl",),
    "metrics": (
        "weft metrics --url http://localhost:9090",
        "weft metrics --check --url http://localhost:9090",
    ),
    "generate nodes": ("weft generate nodes nodes.csv --gpus 800 --seed 1",),
    "generate pods": ("weft generate pods pods.csv --gpus 800 --load 0.9",),
    "trace from-cluster": ("weft trace from-cluster --nodes nodes.csv --pods pods.csv",),
    "trace from-prometheus": (
        "weft trace from-prometheus --url http://localhost:9090 --hours 24 "
        "--nodes nodes.csv --pods pods.csv",
    ),
    "experiment init": ("weft experiment init --name packing > packing.yaml",),
    "experiment check": ("weft experiment check packing.yaml",),
    "experiment run": ("weft experiment run packing.yaml --out build/packing --jobs 4",),
    "experiment report": ("weft experiment report build/packing --page packing.html",),
    "experiment compare": ("weft experiment compare build/before build/after",),
    "experiment reproduce": ("weft experiment reproduce experiments/fgd --short",),
    "config check": ("weft config check weft.yaml",),
    "config import": ("weft config import scheduler-policy.json",),
    "config defaults": ("weft config defaults > weft.yaml",),
    "config explain": ("weft config explain telemetry", "weft config explain limits.promised"),
    "extender serve": ("weft extender serve --port 39999",),
    "extender config": (
        "weft extender config --url https://weft-extender.weft-system:39999 --ca-file ca.crt",
    ),
    "explain pod": (
        "weft explain pod team/train-0",
        "weft explain pod train-0 --snapshot cluster.json",
    ),
    "cluster stranded": ("weft cluster stranded", "weft cluster stranded --snapshot cluster.json"),
    "defrag plan": (
        "weft defrag plan --pod team/train-0",
        "weft defrag plan --gpus 8 --snapshot cluster.json",
    ),
    "defrag apply": ("weft defrag apply --pod team/train-0 --yes",),
    "profile measure": ("weft profile measure profiles/", "weft profile measure out --tiny"),
    "profile collect": (
        "weft profile collect --url http://localhost:9090 --hours 24 --file profiles.json",
    ),
    "profile list": ("weft profile list --file profiles.json",),
    "profile show": ("weft profile show resnet50 --file profiles.json",),
    "profile import": ("weft profile import measured.json --file profiles.json",),
    "profile export": ("weft profile export all.json --config-map weft-system/weft-profiles",),
    "interference train": ("weft interference train profiles.json --to model.json",),
    "interference evaluate": ("weft interference evaluate profiles.json --seeds 10",),
    "interference predict": (
        "weft interference predict model.json > slowdowns.json",
        "weft interference predict model.json resnet50 bert --why",
    ),
}


def add_examples(command: Any, path: str = "") -> None:
    """Add the examples to the end of the help of a command and of its subcommands."""
    examples = EXAMPLES.get(path)
    if examples is not None:
        lines = "\n".join(f"  {line}" for line in examples)
        command.epilog = f"\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"
    for name, below in getattr(command, "commands", {}).items():
        add_examples(below, f"{path} {name}".strip())
