{{- /* A repository with a tag or digest of its own, image.tag, or the chart's version of Weft. */}}
{{- define "weft.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository is empty: write where your image is, as --set image.repository=registry.example/weft-gpu (make image makes it)" $image.repository -}}
{{- $tagged := regexMatch ":[^/]+$" $repository -}}
{{- if contains "@" $repository }}{{ $repository }}
{{- else if and $tagged $image.tag }}{{ fail (printf "image.repository %s has a tag, and image.tag is %s: keep one" $repository $image.tag) }}
{{- else if $tagged }}{{ $repository }}
{{- else }}{{ $repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{- /* The recommended labels of an object of a component: (list $ "agent"). */}}
{{- define "weft.labels" -}}
{{- $root := index . 0 -}}
{{- $common := dict "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (mergeOverwrite $common (include "weft.templateLabels" . | fromYaml)) }}
{{- end }}

{{- /* Those of a component's pods, which stay over an upgrade. */}}
{{- define "weft.templateLabels" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $labels := dict "app.kubernetes.io/name" (printf "weft-%s" $component) "app.kubernetes.io/component" $component "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/part-of" "weft" -}}
{{- if eq $component "scheduler" }}{{ $_ := mergeOverwrite $labels (include "weft.podLabels" $root | fromYaml) }}{{ end -}}
{{- toYaml $labels }}
{{- end }}

{{- /* Annotations of pods: what the chart writes, and the values' own. */}}
{{- define "weft.podAnnotations" -}}
{{- toYaml (mergeOverwrite (deepCopy (index . 1)) (index . 0)) }}
{{- end }}

{{- define "weft.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weft.podLabels" -}}
{{- with .Values.scheduler.podLabels }}{{ toYaml . }}{{ else }}app.kubernetes.io/name: {{ .Values.scheduler.name }}{{ end }}
{{- end }}

{{- define "weft.priorityClass" -}}
{{- if .root.Values.priorityClass.create }}{{ .own }}{{ else }}{{ .system }}{{ end }}
{{- end }}

{{- /* The WeftConfiguration: that of the values, with what the chart itself decides. */}}
{{- define "weft.configuration" -}}
{{- $config := deepCopy .Values.configuration -}}
{{- if and (hasKey $config "profiles") .Values.profiles -}}
{{- fail "profiles and configuration.profiles are both there: keep profiles" -}}
{{- end -}}
{{- with .Values.profiles }}{{ $_ := set $config "profiles" . }}{{ end -}}
{{- if ne (dig "lease" "namespace" "kube-system" $config) "kube-system" -}}
{{- fail "configuration.lease.namespace is not kube-system: leave it out, or two Wefts of one cluster would not see each other" -}}
{{- end -}}
{{- if .Values.extender.enabled -}}
{{- $extender := dict "enabled" true "address" "0.0.0.0" -}}
{{- if eq .Values.extender.certificates "none" -}}
{{- $_ := set $extender "anyoneMayBind" true -}}
{{- else -}}
{{- $_ := set $extender "certificateFile" "/etc/weft/extender-tls/tls.crt" -}}
{{- $_ := set $extender "keyFile" "/etc/weft/extender-tls/tls.key" -}}
{{- $_ := set $extender "clientAuthorityFile" "/etc/weft/extender-tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $config "extender" (mergeOverwrite $extender (default dict $config.extender)) -}}
{{- end -}}
{{- if $config }}{{ toYaml $config }}{{ end }}
{{- end }}

{{- /* schedulerNames of the profiles that kube-scheduler takes, as a YAML list. */}}
{{- define "weft.viaExtender" -}}
{{- $names := list -}}
{{- range .Values.profiles }}{{ if eq (default "scheduler" .via) "extender" }}{{ $names = append $names .schedulerName }}{{ end }}{{ end -}}
{{- toYaml $names }}
{{- end }}

{{- /* Whether profiles preempt: "own" if one of Weft's own scheduler does, "asked" if only one that
kube-scheduler takes, which asks Weft whom to end, or pods are only moved (queue.move); empty for none. Without profiles it is Weft's
default one, which does. */}}
{{- define "weft.preempts" -}}
{{- $profiles := default (list (dict "via" "scheduler")) (default .Values.profiles .Values.configuration.profiles) -}}
{{- $preempts := "" -}}
{{- if dig "queue" "move" false .Values.configuration }}{{ $preempts = "asked" }}{{ end -}}
{{- range $profiles }}{{ if dig "preempt" true . }}
{{- if eq (default "scheduler" .via) "scheduler" }}{{ $preempts = "own" }}{{ else if not $preempts }}{{ $preempts = "asked" }}{{ end }}
{{- end }}{{ end -}}
{{- $preempts -}}
{{- end }}

{{- define "weft.httpPort" -}}
{{- dig "http" "port" 10259 .Values.configuration }}
{{- end }}

{{- define "weft.agentPort" -}}
{{- dig "agent" "port" 9400 .Values.configuration }}
{{- end }}

{{- /* The ConfigMaps of what Weft keeps, as a YAML list; an empty name keeps nothing. */}}
{{- define "weft.kept" -}}
{{- $former := dig "lessons" "name" "weft-lessons" .Values.configuration -}}{{/* of Weft 0.1 */}}
{{- $history := dig "oomHistory" "name" $former .Values.configuration -}}
{{- $observed := dig "interference" "observed" "weft-observed" .Values.configuration -}}
[{{ compact (list $history $observed) | join ", " }}]
{{- end }}

{{- /* "true" where the object is there and this release has not made it: what processes made, or an
earlier installation left, serves as it is. helm would refuse to install over it. */}}
{{- define "weft.foundThere" -}}
{{- $there := lookup .version .kind "kube-system" .name -}}
{{- $marks := dig "metadata" "annotations" (dict) $there -}}
{{- $whose := printf "%v/%v" (get $marks "meta.helm.sh/release-namespace") (get $marks "meta.helm.sh/release-name") -}}
{{- if and $there (ne $whose (printf "%s/%s" .release.Namespace .release.Name)) }}true{{ end }}
{{- end }}

{{/* How much is logged, and how a line looks, where it is not as by default. */}}
{{- define "weft.log" -}}
{{- if ne .Values.log.level "info" }}, --log={{ .Values.log.level }}{{ end }}
{{- if ne .Values.log.format "text" }}, --log-format={{ .Values.log.format }}{{ end }}
{{- end }}

{{- define "weft.monitoringLabels" -}}
{{- toYaml (mergeOverwrite (include "weft.labels" (list . "monitoring") | fromYaml) .Values.monitoring.labels) }}
{{- end }}

{{- /* How pods that name no scheduler get one: by the API server's policy, our webhook, or not. */}}
{{- define "weft.scheduleBy" -}}
{{- $how := .Values.admission.schedule -}}
{{- if not .Values.admission.enabled }}never
{{- else if eq $how "always" }}policy
{{- else if ne $how "auto" }}{{ $how }}
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}policy
{{- else if include "weft.sees" . }}webhook
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}policy
{{- else }}webhook
{{- end }}
{{- end }}

{{- /* Where the webhook's certificate comes from; `auto` only where helm can look what is there. */}}
{{- define "weft.webhookCertificates" -}}
{{- $how := .Values.webhook.certificates -}}
{{- if ne $how "auto" }}{{ $how }}
{{- else if include "weft.sees" . }}generate
{{- else }}{{ fail "webhook.certificates is auto, and this is rendered without a cluster (helm template, GitOps): each rendering would make another certificate; write cert-manager, or secret with webhook.caBundle (docs/howto/install-with-helm.md), or generate where it is rendered once; from Kubernetes 1.36 on no webhook is needed: say --kube-version" }}
{{- end }}
{{- end }}

{{- /* "true" where helm sees the cluster: not in `helm template`, as GitOps renders. */}}
{{- define "weft.sees" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end }}
{{- end }}
