{{- define "rdmabridge.name" -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "rdmabridge.selector" -}}
app.kubernetes.io/name: rdmabridge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rdmabridge.labels" -}}
{{ include "rdmabridge.selector" . }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The configuration, with what the probes need. Sidecars and bridges in the node's network have the admin server on
loopback; that of a gateway in the pod's network is behind the NetworkPolicy. */ -}}
{{- define "rdmabridge.adminHost" -}}
{{- if or (eq .Values.mode "sidecar") .Values.hostNetwork }}127.0.0.1{{ end }}
{{- end }}

{{- define "rdmabridge.config" -}}
{{- $admin := dict "address" (printf "%s:%d" (include "rdmabridge.adminHost" .) (int .Values.adminPort)) -}}
{{- $control := dict "path" "/run/rdmabridge/control.sock" -}}
{{- toYaml (merge (deepCopy .Values.config) (dict "admin" $admin "control" $control)) }}
{{- end }}

{{- /* Probes of a bridge whose admin server is on loopback are commands: the kubelet is not in the pod. */ -}}
{{- define "rdmabridge.probe" -}}
{{- $root := index . 0 -}}
{{- if and (include "rdmabridge.adminHost" $root) (not $root.Values.hostNetwork) }}
exec: {command: [/rdmabridge, stats, --json, --socket, /run/rdmabridge/control.sock]}
{{- else if $root.Values.hostNetwork }}
httpGet: {host: 127.0.0.1, path: {{ index . 1 }}, port: {{ $root.Values.adminPort }}}
{{- else }}
httpGet: {path: {{ index . 1 }}, port: admin}
{{- end }}
{{- end }}

{{- define "rdmabridge.container" -}}
name: rdmabridge
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
restartPolicy: Always
{{- end }}
args: [serve, -c, /etc/rdmabridge/rdmabridge.yaml]
{{- with .Values.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if eq .Values.mode "gateway" }}
ports:
  {{- range .Values.ports }}
  - {name: {{ .name }}, containerPort: {{ .port }}, protocol: {{ get . "protocol" | default "TCP" }}}
  {{- end }}
  {{- if not (include "rdmabridge.adminHost" .) }}
  - {name: admin, containerPort: {{ .Values.adminPort }}, protocol: TCP}
  {{- end }}
{{- end }}
# No probe that restarts the bridge depends on storage: a restart would not repair that, and costs clients their connections.
startupProbe:
  {{- include "rdmabridge.probe" (list . "/livez") | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
{{- if eq .Values.mode "gateway" }}
readinessProbe:
  {{- include "rdmabridge.probe" (list . "/readyz") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}
livenessProbe:
  {{- include "rdmabridge.probe" (list . "/livez") | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  preStop:
    {{- if eq .Values.preStop "sleep" }}
    sleep: {seconds: {{ .Values.preStopSeconds }}}
    {{- else }}
    exec: {command: [/rdmabridge, drain, --socket, /run/rdmabridge/control.sock]}
    {{- end }}
resources:
  {{- $r := deepCopy .Values.resources }}
  {{- if .Values.rdma.resource }}
  {{- $one := dict .Values.rdma.resource .Values.rdma.count }}
  {{- $r = merge $r (dict "requests" $one "limits" $one) }}
  {{- end }}
  {{- toYaml $r | nindent 2 }}
securityContext:
  {{- if and .Values.rdma.resource .Values.rdma.ipcLock }}
  runAsUser: 0 # Kubernetes gives capabilities to user 0 only
  {{- else }}
  runAsNonRoot: true
  runAsUser: 65534
  {{- end }}
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
    {{- if and .Values.rdma.resource .Values.rdma.ipcLock }}
    add: [IPC_LOCK]
    {{- end }}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: rdmabridge-config, mountPath: /etc/rdmabridge, readOnly: true}
  - {name: rdmabridge-run, mountPath: /run/rdmabridge} # the control socket: kubectl exec POD -c rdmabridge -- /rdmabridge stats
  {{- range .Values.tlsSecrets }}
  - {name: tls-{{ . }}, mountPath: /etc/rdmabridge-tls/{{ . }}, readOnly: true}
  {{- end }}
{{- end }}

{{- define "rdmabridge.volumes" -}}
- name: rdmabridge-config
  configMap: {name: {{ include "rdmabridge.name" . }}}
- name: rdmabridge-run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- range .Values.tlsSecrets }}
- name: tls-{{ . }}
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
