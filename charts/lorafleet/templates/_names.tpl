{{/* Names, labels and images that several templates share. */}}
{{- define "lorafleet.name" -}}
{{- if contains "lorafleet" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-lorafleet" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Cluster-scoped names carry the namespace, so that two releases never share one. */}}
{{- define "lorafleet.clusterName" -}}
{{ printf "%s-%s" (include "lorafleet.name" .) .Release.Namespace }}
{{- end }}

{{- define "lorafleet.labels" -}}
app.kubernetes.io/name: lorafleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Arguments: root, component. */}}
{{- define "lorafleet.selector" -}}
app.kubernetes.io/name: lorafleet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Arguments: root, image. */}}
{{- define "lorafleet.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Values.imageTag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The Secret with the gateway's certificate; empty without TLS. */}}
{{- define "lorafleet.tlsSecret" -}}
{{- with .Values.gateway.tls }}
{{- if .secretName }}{{ .secretName }}{{ else if (.certificate).enabled }}{{ include "lorafleet.name" $ }}-gateway-tls{{ end }}
{{- end }}
{{- end }}

{{/* The DNS names in the gateway's certificate, as a YAML list. */}}
{{- define "lorafleet.gatewayNames" -}}
{{- $name := printf "%s-gateway" (include "lorafleet.name" .) }}
{{- $service := printf "%s.%s" $name .Release.Namespace }}
{{- concat (list $name $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service)) .Values.gateway.tls.certificate.dnsNames | toYaml }}
{{- end }}

{{/* `true` where cert-manager is to make something, else empty. Arguments: root, by (Auto: where the cluster has it). */}}
{{- define "lorafleet.byCertManager" -}}
{{- if or (eq .by "CertManager") (and (eq .by "Auto") (.root.Capabilities.APIVersions.Has "cert-manager.io/v1")) }}true{{ end }}
{{- end }}

{{/* `true` where cert-manager makes the gateway's certificate: an issuer says so, too. */}}
{{- define "lorafleet.gatewayByCertManager" -}}
{{- with .Values.gateway.tls.certificate }}
{{- if .issuerRef }}true{{ else }}{{ include "lorafleet.byCertManager" (dict "root" $ "by" .by) }}{{ end }}
{{- end }}
{{- end }}

{{- define "lorafleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lorafleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Arguments: the part's values. */}}
{{- define "lorafleet.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pods that may read metrics, as NetworkPolicyPeers. Arguments: names of their namespaces. */}}
{{- define "lorafleet.monitors" -}}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end }}

{{/* Replicas on different nodes where there are some, so that one lost node takes one of them. Arguments: the selector. */}}
{{- define "lorafleet.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- . | nindent 8 }}
{{- end }}
