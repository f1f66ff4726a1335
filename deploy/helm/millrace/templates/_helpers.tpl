{{- define "millrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "millrace.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What belongs to this release; of (list . component). Never changes: selectors cannot. */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Of a pool: (list . pool). */}}
{{- define "millrace.poolSelector" -}}
{{ include "millrace.selector" (list (index . 0) "worker") }}
millrace/pool: {{ index . 1 | quote }}
{{- end -}}

{{- define "millrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: millrace
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: another version of the chart alone is no reason to restart them. */}}
{{- define "millrace.podLabels" -}}
app.kubernetes.io/part-of: millrace
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "millrace.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "millrace.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "millrace.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A pool with its defaults: (list . pool), as JSON. */}}
{{- define "millrace.pool" -}}
{{- $root := index . 0 -}}
{{- $own := index $root.Values.pools (index . 1) | default dict -}}
{{- mergeOverwrite (deepCopy $root.Values.poolDefaults) (deepCopy $own) | toJson -}}
{{- end -}}

{{/* Name of what belongs to a pool: (list . pool). Names of Kubernetes are shorter than those of pools may be, and have no upper-case letters and underscores: then a hash tells pools apart. */}}
{{- define "millrace.poolName" -}}
{{- $pool := index . 1 -}}
{{- $plain := $pool | lower | replace "_" "-" | trimAll "-" -}}
{{- $name := printf "%s-pool-%s" (include "millrace.fullname" (index . 0)) $plain -}}
{{- if or (ne $plain $pool) (gt (len $name) 60) -}}
{{- $name = printf "%s-%s" ($name | trunc 52 | trimSuffix "-") (sha256sum $pool | trunc 7) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "millrace.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "millrace.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* 90 % of a quantity of memory, for GOMEMLIMIT: the rest is for what the Go runtime does not count. */}}
{{- define "millrace.goMemLimit" -}}
{{- $quantity := . | toString -}}
{{- $unit := regexFind "(Ki|Mi|Gi)?$" $quantity -}}
{{- $number := trimSuffix $unit $quantity -}}
{{- if not (regexMatch "^[0-9]+$" $number) -}}
{{- fail (printf "the memory limit %q is not a whole number of bytes, Ki, Mi or Gi, from which GOMEMLIMIT is computed" $quantity) -}}
{{- end -}}
{{- $bytes := int64 $number -}}
{{- if eq $unit "Ki" -}}{{- $bytes = mul $bytes 1024 -}}{{- end -}}
{{- if eq $unit "Mi" -}}{{- $bytes = mul $bytes 1048576 -}}{{- end -}}
{{- if eq $unit "Gi" -}}{{- $bytes = mul $bytes 1073741824 -}}{{- end -}}
{{- printf "%dKiB" (div (mul (div $bytes 1024) 90) 100) -}}
{{- end -}}

{{/* Environment of every role: (dict "root" . "nats" nats-of-the-role "resources" resources). */}}
{{- define "millrace.env" -}}
- name: MILLRACE_NATS
{{- if .nats.urlSecretName }}
  valueFrom:
    secretKeyRef:
      name: {{ .nats.urlSecretName }}
      key: {{ .nats.urlKey }}
{{- else }}
  value: {{ .root.Values.nats.url | quote }}
{{- end }}
{{- if .nats.credsSecretName }}
- name: MILLRACE_NATS_CREDS
  value: /etc/millrace/nats-creds/{{ .nats.credsKey }}
{{- end }}
{{- with .root.Values.nats.tls }}
{{- if .secretName }}
{{- if .caKey }}
- name: MILLRACE_NATS_CA
  value: /etc/millrace/nats-tls/{{ .caKey }}
{{- end }}
{{- if .certKey }}
- name: MILLRACE_NATS_CERT
  value: /etc/millrace/nats-tls/{{ .certKey }}
- name: MILLRACE_NATS_KEY
  value: /etc/millrace/nats-tls/{{ .keyKey }}
{{- end }}
{{- end }}
{{- end }}
- name: MILLRACE_LOG_LEVEL
  value: {{ .root.Values.log.level | quote }}
- name: MILLRACE_LOG_FORMAT
  value: {{ .root.Values.log.format | quote }}
{{- if .root.Values.admin.enabled }}
- name: MILLRACE_ADMIN_LISTEN
  value: ":{{ .root.Values.admin.port }}"
{{- end }}
{{- with .root.Values.tracing }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ .protocol | quote }}
- name: OTEL_TRACES_SAMPLER
  value: {{ .sampler | quote }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .samplerArg | quote }}
{{- end }}
{{- end }}
- name: GOMEMLIMIT
  value: {{ include "millrace.goMemLimit" .resources.limits.memory | quote }}
# Whole processors, rounded up.
- name: GOMAXPROCS
  valueFrom:
    resourceFieldRef:
      resource: limits.cpu
{{- end -}}

{{/* Volumes and mounts of every role: as millrace.env. */}}
{{- define "millrace.volumes" -}}
{{- if .nats.credsSecretName }}
- name: nats-creds
  secret:
    secretName: {{ .nats.credsSecretName }}
    defaultMode: 0440
{{- end }}
{{- if .root.Values.nats.tls.secretName }}
- name: nats-tls
  secret:
    secretName: {{ .root.Values.nats.tls.secretName }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "millrace.mounts" -}}
{{- if .nats.credsSecretName }}
- name: nats-creds
  mountPath: /etc/millrace/nats-creds
  readOnly: true
{{- end }}
{{- if .root.Values.nats.tls.secretName }}
- name: nats-tls
  mountPath: /etc/millrace/nats-tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* Spread over zones and nodes: (dict "own" constraints "selector" labels). */}}
{{- define "millrace.spread" -}}
{{- if .own }}
{{- toYaml .own }}
{{- else }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- $.selector | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end -}}

{{/* Probes on the port of health. */}}
{{- define "millrace.adminProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* What needs the metrics of the admin port must not be on without it. */}}
{{- define "millrace.needAdmin" -}}
{{- if not (index . 0).Values.admin.enabled -}}
{{- fail (printf "%s needs admin.enabled: the metrics are served there" (index . 1)) -}}
{{- end -}}
{{- end -}}

{{/* Where every role may connect to. */}}
{{- define "millrace.egress" -}}
- ports:
    - {port: {{ .Values.nats.port }}, protocol: TCP}
  {{- with .Values.nats.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# Names.
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- with .Values.tracing }}
{{- if .endpoint }}
# The collector of traces.
{{- if .egress }}
{{ toYaml .egress }}
{{- else }}
- ports:
    - {port: 4317, protocol: TCP}
    - {port: 4318, protocol: TCP}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Who may read metrics. */}}
{{- define "millrace.adminIngress" -}}
{{- if .Values.admin.enabled }}
- ports:
    - {port: admin, protocol: TCP}
  from:
    {{- if .Values.networkPolicy.metrics }}
    {{- toYaml .Values.networkPolicy.metrics | nindent 4 }}
    {{- else }}
    - podSelector: {}
    {{- end }}
{{- end }}
{{- end -}}
