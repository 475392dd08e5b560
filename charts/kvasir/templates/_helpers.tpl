{{- define "kvasir.picker" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-picker
{{- end }}

{{- define "kvasir.selector" -}}
app.kubernetes.io/name: kvasir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: picker
{{- end }}

{{- define "kvasir.labels" -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kvasir.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kvasir.picker" .) }}
{{- end }}
