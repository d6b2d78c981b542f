{{- define "repoagent.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "repoagent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "repoagent.labels" -}}
{{ include "repoagent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "repoagent.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "repoagent.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "repoagent.probe" -}}
httpGet:
  path: /v2/health/{{ .what }}
  port: http
  {{- if .root.Values.tls.secretName }}
  scheme: HTTPS
  {{- end }}
  {{- with .root.Values.probeHeaders }}
  httpHeaders:
    {{- toYaml . | nindent 4 }}
  {{- end }}
timeoutSeconds: 5
{{- end }}
