{{/* What all names begin with: the release's name, with kvasir in it. */}}
{{- define "kvasir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains "kvasir" .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-kvasir" (.Release.Name | trunc 33 | trimSuffix "-") }}
{{- end -}}
{{- end }}

{{- define "kvasir.operator" -}}
{{ include "kvasir.fullname" . }}-operator
{{- end }}

{{/* The network policies of pickers let pods with this name in. */}}
{{- define "kvasir.selector" -}}
app.kubernetes.io/name: kvasir-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvasir.labels" -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: kvasir
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kvasir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "kvasir.operator" .) }}
{{- else -}}
{{ required "serviceAccount.name is needed where none is created" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{/*
The image of one of manager, picker and reporter: include "kvasir.image" (list $ "picker"). There is no registry with public images:
without one of the user's own, pods would never start, with an error that names no cure.
*/}}
{{- define "kvasir.image" -}}
{{- $top := index . 0 -}}
{{- $image := index $top.Values.images (index . 1) -}}
{{- $hosted := regexMatch "^([^/]*[.:][^/]*|localhost)/" $image.repository -}}
{{- if and (not $top.Values.images.registry) (not $hosted) -}}
{{- fail (printf "images.registry is not set. Kvasir has no public images: build them and push them to your registry with `make images TAG=v1 REGISTRY=registry.example.com/team`, then install with --set images.registry=registry.example.com/team --set images.tag=v1. If the nodes have the images already, set images.registry=docker.io. See %s/blob/main/docs/install.md#images" $top.Chart.Home) -}}
{{- end -}}
{{- with $top.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $top.Values.images.tag | default $top.Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "kvasir.subject" -}}
- kind: ServiceAccount
  name: {{ include "kvasir.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* How Prometheus asks: by TLS, as who it is. */}}
{{- define "kvasir.scrape" -}}
scheme: https
{{- with .Values.monitoring.monitors.interval }}
interval: {{ . }}
{{- end }}
{{- if .Values.monitoring.monitors.credentials.name }}
authorization:
  credentials: {{- toYaml .Values.monitoring.monitors.credentials | nindent 4 }}
{{- else }}
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
{{- end }}
{{- end }}
