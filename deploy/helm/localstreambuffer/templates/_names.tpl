{{/* The name of the chart, and the prefix of all names. */}}
{{- define "lsb.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 45 characters, because the pods of a StatefulSet have longer names, which are also instance names. */}}
{{- define "lsb.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of a component's objects. Takes: root, component (spelled as its command: db_connector). */}}
{{- define "lsb.componentName" -}}
{{- printf "%s-%s" (include "lsb.fullname" .root) (.component | replace "_" "-") -}}
{{- end -}}

{{/* The labels that select pods. They never change. Takes: root, component. */}}
{{- define "lsb.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lsb.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* All labels. Takes: root, component. */}}
{{- define "lsb.labels" -}}
{{ include "lsb.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The metadata of a component's object. Takes: root, component. */}}
{{- define "lsb.metadata" -}}
name: {{ include "lsb.componentName" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "lsb.labels" . | nindent 2 }}
{{- end -}}

{{/* An image reference. Takes: root, image. */}}
{{- define "lsb.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}

{{/* Whether the control service can be reached over the network: "true" or nothing. */}}
{{- define "lsb.controlIsOpen" -}}
{{- if or .Values.control.tls.secret .Values.control.proxies -}}true{{- end -}}
{{- end -}}
