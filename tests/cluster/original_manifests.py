"""What users of the five systems apply, in the form each system's own documents have: which fields,
which values, which kinds. The words, names and images are our own.

`pods_of(text)` makes of workloads the pods that their controllers would make; there is no
controller here.
"""

import msgspec
from kube_api import Object, Objects

from weft.cli.manifests import load, pods_in, split

ELASTIC = """
# 256 MiB of a card, as Elastic's first example asks
apiVersion: apps/v1
kind: Deployment
metadata: {name: sharing}
spec:
  replicas: 2
  selector: {matchLabels: {app: sharing}}
  template:
    metadata: {labels: {app: sharing}}
    spec:
      containers:
      - name: cuda
        image: example.org/cuda
        resources: {limits: {elasticgpu.io/gpu-memory: "256"}}
---
# a part of the cores
apiVersion: v1
kind: Pod
metadata: {name: cores}
spec:
  containers:
  - name: cuda
    image: example.org/cuda
    resources:
      limits: {elasticgpu.io/gpu-core: "20", elasticgpu.io/gpu-memory: "3000"}
      requests: {elasticgpu.io/gpu-core: "20", elasticgpu.io/gpu-memory: "3000"}
---
# two containers, each with a GPU of its own
apiVersion: v1
kind: Pod
metadata: {name: two-containers}
spec:
  containers:
  - name: server
    image: example.org/server
    resources: {limits: {elasticgpu.io/gpu-core: "20"}}
  - name: client
    image: example.org/client
    resources: {limits: {elasticgpu.io/gpu-core: "40"}}
---
# whole cards
apiVersion: batch/v1
kind: Job
metadata: {name: cards}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: train
        image: example.org/train
        resources: {limits: {elasticgpu.io/gpu-core: "200"}}
"""

GPUSHARE = """
# the samples: a StatefulSet and Deployments of 2 units
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: binpack-1, labels: {app: binpack-1}}
spec:
  replicas: 3
  serviceName: binpack-1
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: binpack-1}}
  template:
    metadata: {labels: {app: binpack-1}}
    spec:
      containers:
      - name: binpack-1
        image: example.org/gpu-player
        resources: {limits: {aliyun.com/gpu-mem: 2}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: binpack-2}
spec:
  replicas: 1
  selector: {matchLabels: {app: binpack-2}}
  template:
    metadata: {labels: {app: binpack-2}}
    spec:
      containers:
      - name: binpack-2
        image: example.org/gpu-player
        resources: {limits: {aliyun.com/gpu-mem: 3}}
---
# the experiments' second way, a Job of whole GiB
apiVersion: batch/v1
kind: Job
metadata: {name: alibaba-resnet}
spec:
  backoffLimit: 20
  template:
    spec:
      hostIPC: true
      restartPolicy: OnFailure
      containers:
      - name: resnet
        image: example.org/mlperf
        resources: {limits: {aliyun.com/gpu-mem: 9}}
"""

GPUSHARE_MIB = """
# the sample of the days when units were MiB: all of a card
apiVersion: apps/v1
kind: Deployment
metadata: {name: binpack-4}
spec:
  replicas: 1
  selector: {matchLabels: {app: binpack-4}}
  template:
    metadata: {labels: {app: binpack-4}}
    spec:
      containers:
      - name: binpack-4
        image: example.org/gpu-player
        resources: {limits: {aliyun.com/gpu-mem: 16276}}
"""

COSCHEML = """
# applications known by the container's name, profiled MiB
apiVersion: extensions/v1beta1
kind: Deployment
metadata: {name: lammps}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: lammps}}
    spec:
      containers:
      - name: lammps
        image: example.org/lammps
        resources: {limits: {aliyun.com/gpu-mem: 300}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: regression}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: regression
        image: example.org/regression
        resources: {limits: {aliyun.com/gpu-mem: 1200}}
---
apiVersion: v1
kind: Pod
metadata: {name: googlenet}
spec:
  containers:
  - name: google
    image: example.org/tf
    resources: {limits: {aliyun.com/gpu-mem: 4000}}
"""

ALNAIR = """
apiVersion: v1
kind: Pod
metadata: {name: cost}
spec:
  schedulerName: alnair-cost-saving
  containers:
  - name: cuda
    image: example.org/cuda
    resources: {limits: {alnair/vgpu-memory: 4, alnair/vgpu-compute: 20}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: performance}
spec:
  template:
    spec:
      schedulerName: alnair-high-performance
      restartPolicy: Never
      containers:
      - name: torch
        image: example.org/torch
        resources: {limits: {alnair/vgpu-memory: 8, alnair/vgpu-compute: 50}}
"""

GENIUS = """
apiVersion: v1
kind: Pod
metadata:
  name: labelled
  labels:
    genius/gpu-number: "1"
    genius/gpu-memory-each: "2000"
    genius/gpu-model: 1070.Ti
    genius/priority: "3"
spec:
  schedulerName: genius-scheduler
  containers: [{name: cuda, image: example.org/cuda}]
---
apiVersion: v1
kind: Pod
metadata: {name: in-all, labels: {genius/gpu-memory-total: "5000"}}
spec:
  schedulerName: genius-scheduler
  containers: [{name: cuda, image: example.org/cuda}]
---
apiVersion: v1
kind: Pod
metadata: {name: no-label}
spec:
  schedulerName: genius-scheduler
  containers: [{name: cpu, image: example.org/cpu}]
"""

KUBEKNOTS = """
# the experiments' third way: a label of MiB, no resource
apiVersion: batch/v1
kind: Job
metadata: {name: mobilenet}
spec:
  backoffLimit: 20
  template:
    metadata: {labels: {GPU_MEM_REQ: "872"}}
    spec:
      schedulerName: custom-scheduler
      hostIPC: true
      restartPolicy: OnFailure
      containers: [{name: mobilenet, image: example.org/mlperf}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ssd}
spec:
  backoffLimit: 20
  template:
    metadata: {labels: {GPU_MEM_REQ: "6994"}}
    spec:
      schedulerName: custom-scheduler
      hostIPC: true
      restartPolicy: OnFailure
      containers: [{name: ssd, image: example.org/mlperf}]
"""

PLAIN = """
# the experiments' first way: a whole card of the stock kind
apiVersion: batch/v1
kind: Job
metadata: {name: default-resnet}
spec:
  backoffLimit: 20
  template:
    spec:
      hostIPC: true
      restartPolicy: OnFailure
      containers:
      - name: resnet
        image: example.org/mlperf
        resources: {limits: {nvidia.com/gpu: 1}}
"""

EVERY_MANIFEST = (*(ELASTIC, GPUSHARE, GPUSHARE_MIB, COSCHEML, ALNAIR, GENIUS, KUBEKNOTS, PLAIN),)


def pods_of(text: str) -> Objects:
    """The pods of these documents: a template's as often as its workload wants replicas."""
    found: Objects = []
    for document in split(text):
        whole = load(document)
        for one in pods_in(whole):
            replicas = whole.get("spec", {}).get("replicas", 1) if one.kind != "Pod" else 1
            for number in range(replicas):
                name = one.name if one.kind == "Pod" else f"{one.name}-{number}"
                found.append(_as_made(one.value, name))
    return found


def _as_made(template: Object, name: str) -> Object:
    """The template as a pod of this name. A pod's restartPolicy is what the template says."""
    made: Object = msgspec.json.decode(msgspec.json.encode(template))
    made |= {"apiVersion": "v1", "kind": "Pod"}
    made["metadata"] = {**made.get("metadata", {}), "name": name}
    return made
