{{- define "party.selector" -}}
app.kubernetes.io/name: fedsim-party
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "party.labels" -}}
{{ include "party.selector" . }}
app.kubernetes.io/component: {{ .Values.role }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The pod of a party; the same for a Job and a StatefulSet but for the restart policy. */}}
{{- define "party.pod" -}}
metadata:
  labels:
    {{- include "party.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # A StatefulSet starts its pod again when this changes. A Job refuses the upgrade, which is better than an upgrade
    # without effect: the files are mounted by subPath, so that a running pod never sees a new version.
    checksum/config: {{ print .Values.job .Values.party | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  restartPolicy: {{ ternary "Always" "Never" .Values.stay }}
  automountServiceAccountToken: {{ .Values.serviceAccount.token }}
  {{- with .Values.serviceAccount.name }}
  serviceAccountName: {{ . }}
  {{- end }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: party
      image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # Both files are mounted into the party's folder, because paths in them are relative to it.
      args: ["party", "/party/job.toml", "/party/party.toml"{{ if .Values.stay }}, "--stay"{{ end }}]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      {{- with .Values.env }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.secrets.env }}
      envFrom:
        - secretRef:
            name: {{ . }}
      {{- end }}
      {{- if or .Values.port .Values.metricsPort }}
      ports:
        {{- if .Values.port }}
        - name: party
          containerPort: {{ .Values.port }}
        {{- end }}
        {{- if .Values.metricsPort }}
        - name: metrics
          containerPort: {{ .Values.metricsPort }}
        {{- end }}
      {{- end }}
      {{- if .Values.port }}
      # No liveness by the port: a party that computes for long must not be killed for a slow answer.
      readinessProbe:
        tcpSocket:
          port: party
        periodSeconds: 10
      {{- end }}
      {{- if .Values.metricsPort }}
      livenessProbe:
        httpGet:
          path: /metrics
          port: metrics
        initialDelaySeconds: 60
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 10
      {{- end }}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - name: party
          mountPath: /party
        - name: settings
          mountPath: /party/job.toml
          subPath: job.toml
          readOnly: true
        - name: settings
          mountPath: /party/party.toml
          subPath: party.toml
          readOnly: true
        - name: tmp
          mountPath: /tmp
        {{- if .Values.secrets.tls }}
        - name: tls
          mountPath: /secrets/tls
          readOnly: true
        {{- end }}
        {{- if .Values.secrets.linkage }}
        - name: linkage
          mountPath: /secrets/linkage
          readOnly: true
        {{- end }}
        {{- if .Values.csi.secretProviderClass }}
        - name: store
          mountPath: /secrets/store
          readOnly: true
        {{- end }}
  volumes:
    - name: party
      persistentVolumeClaim:
        claimName: {{ default .Release.Name .Values.storage.existingClaim }}
    - name: settings
      configMap:
        name: {{ .Release.Name }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.tmpSize }}
    {{- range $name := list "tls" "linkage" }}
    {{- with index $.Values.secrets $name }}
    - name: {{ $name }}
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- end }}
    {{- with .Values.csi.secretProviderClass }}
    - name: store
      csi:
        driver: secrets-store.csi.k8s.io
        readOnly: true
        volumeAttributes:
          secretProviderClass: {{ . }}
    {{- end }}
{{- end }}
