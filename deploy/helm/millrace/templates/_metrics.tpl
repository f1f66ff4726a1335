{{/*
The names of the metrics that are used for scaling and alerts, here and nowhere
else. They are gauges on the admin port.
*/}}

{{/* Of an edge: SSE streams that are open. */}}
{{- define "millrace.metric.openStreams" -}}millrace_edge_open_streams{{- end -}}

{{/* Of an edge, by pool: calls that wait until an instance takes them. */}}
{{- define "millrace.metric.queued" -}}millrace_pool_calls_queued{{- end -}}

{{/* Of a worker, by pool: slots in use, as a share from 0 to 1. */}}
{{- define "millrace.metric.busy" -}}millrace_pool_busy_ratio{{- end -}}
