{{/*
A component's pods. Takes:
  root, component
  settings: the component's part of the values
  image: the image's part of the values
  command: the arguments to python -m
  environment: the component's own variables, as a list
  secrets: the names in .Values.secrets that the component needs
  tls: the Secret of a certificate, or nothing
  compiled: whether the component uses compiled loops
  probes: its container's probes
  ports: its container's ports, by name
*/}}
{{- define "lsb.podTemplate" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
metadata:
  annotations:
    # The services read their settings only on startup.
    checksum/config: {{ $values.config | sha256sum | quote }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "lsb.labels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # The services do not use the Kubernetes API.
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .settings.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{ toYaml . | nindent 6 | trim }}
      {{- if not .labelSelector }}
      labelSelector:
        matchLabels:
          {{- include "lsb.selectorLabels" $ | nindent 10 }}
      {{- end }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .settings.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  {{- if .compiled }}
  initContainers:
    # The image contains the join's compiled loops. Their folder must be writable, but the root file system is not.
    - name: compiled
      {{- include "lsb.container" . | nindent 6 }}
      command: [cp, -a, /var/cache/lsb/., /compiled/]
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 128Mi}
      volumeMounts:
        - name: compiled
          mountPath: /compiled
  {{- end }}
  containers:
    - name: {{ .component | replace "_" "-" }}
      {{- include "lsb.container" . | nindent 6 }}
      command: {{ concat (list "python" "-m") .command (list "--config" "/etc/lsb/config/lsb.toml") | toJson }}
      {{- with include "lsb.environment" . }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        {{- range $name, $port := .ports }}
        - name: {{ $name }}
          containerPort: {{ $port }}
        {{- end }}
      {{- toYaml .probes | nindent 6 }}
      resources:
        {{- toYaml .settings.resources | nindent 8 }}
      volumeMounts:
        {{- include "lsb.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "lsb.volumes" . | nindent 4 }}
{{- end -}}

{{/* The part that all containers have in common. */}}
{{- define "lsb.container" -}}
image: {{ include "lsb.image" . }}
imagePullPolicy: {{ .image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The environment: the component's own variables, the files of its secrets, and the user's variables, without duplicates. */}}
{{- define "lsb.environment" -}}
{{- $values := .root.Values -}}
{{- $files := dict "kafkaPassword" "LSB_KAFKA__SASL_PASSWORD_FILE" "mqttPassword" "LSB_MQTT__PASSWORD_FILE" "influxdbToken" "LSB_INFLUXDB__TOKEN_FILE" "postgresqlPassword" "LSB_POSTGRESQL__PASSWORD_FILE" "registryPassword" "LSB_REGISTRY__PASSWORD_FILE" "controlUsers" "LSB_CONTROL__USERS_FILE" -}}
{{- $given := merge (dict) .settings.environment $values.environment -}}
{{- $all := .environment -}}
{{- range .secrets }}
{{- if (get $values.secrets .).name }}
{{- $all = append $all (dict "name" (get $files .) "value" (printf "/etc/lsb/secrets/%s" .)) }}
{{- end }}
{{- end }}
{{- if $values.functions.configMap }}
{{- $all = append $all (dict "name" "PYTHONPATH" "value" "/opt/lsb:/etc/lsb/functions") }}
{{- end }}
{{- range $name, $value := $given }}
{{- /* As JSON, because Helm would write a large number as 2e+06. */}}
{{- $text := ternary $value (toJson $value) (kindIs "string" $value) }}
{{- $all = append $all (dict "name" $name "value" $text) }}
{{- end }}
{{- with $all }}{{ toYaml . }}{{ end }}
{{- end -}}

{{- define "lsb.volumeMounts" -}}
- name: config
  mountPath: /etc/lsb/config
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if .compiled }}
- name: compiled
  mountPath: /var/cache/lsb
{{- end }}
{{- if include "lsb.secretSources" . }}
- name: secrets
  mountPath: /etc/lsb/secrets
  readOnly: true
{{- end }}
{{- with .tls }}
- name: tls
  mountPath: /etc/lsb/tls
  readOnly: true
{{- end }}
{{- if .root.Values.certificates.configMap }}
- name: certificates
  mountPath: /etc/lsb/certificates
  readOnly: true
{{- end }}
{{- if .root.Values.functions.configMap }}
- name: functions
  mountPath: /etc/lsb/functions
  readOnly: true
{{- end }}
{{- end -}}

{{- define "lsb.volumes" -}}
- name: config
  configMap:
    name: {{ include "lsb.fullname" .root }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if .compiled }}
- name: compiled
  emptyDir:
    sizeLimit: 256Mi
{{- end }}
{{- with include "lsb.secretSources" . }}
- name: secrets
  projected:
    # Readable by the pod's group, fsGroup.
    defaultMode: 0440
    sources:
      {{- . | trim | nindent 6 }}
{{- end }}
{{- with .tls }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .root.Values.certificates.configMap }}
- name: certificates
  configMap:
    name: {{ . }}
{{- end }}
{{- with .root.Values.functions.configMap }}
- name: functions
  configMap:
    name: {{ . }}
{{- end }}
{{- end -}}

{{/* The Secrets that the component needs, if the values name them. */}}
{{- define "lsb.secretSources" -}}
{{- $secrets := .root.Values.secrets -}}
{{- range $name := .secrets }}
{{- with get $secrets $name }}
{{- if .name }}
- secret:
    name: {{ .name }}
    items:
      - key: {{ .key }}
        path: {{ $name }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The probes of a pipeline service. /healthz fails when the service's loop has been stuck for metrics.stalled_after, a
minute by default. It does not fail while Kafka, MQTT or the database is down, because a restart would not help. Startup
may take minutes if the loops have to be compiled for a different CPU from that of the machine that built the image.
*/}}
{{- define "lsb.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* The Service that lets Prometheus find a component's pods, including those not ready. Takes: root, component. */}}
{{- define "lsb.metricsService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "lsb.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "lsb.selectorLabels" . | nindent 4 }}
  ports:
    - name: metrics
      port: {{ .root.Values.metrics.port }}
      targetPort: metrics
{{- end -}}
