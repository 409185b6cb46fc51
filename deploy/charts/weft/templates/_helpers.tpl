{{- /* The labels that Kubernetes recommends, for every object of the chart. The DaemonSet does not select its pods with them. */ -}}
{{- define "weft.labels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ toJson .Release.Name }}
app.kubernetes.io/version: {{ toJson .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ toJson .Release.Service }}
helm.sh/chart: {{ toJson (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- end -}}
{{- /*
The name of an image: repository, tag and, if the values have a digest, this digest. YAML parses a tag of digits, such as 20261129, as a
number. In a released chart the tag includes a digest; a digest in the values replaces it.
*/ -}}
{{- define "weft.image" -}}
{{- $tag := kindIs "string" .tag | ternary .tag (toJson .tag) }}
{{- .repository }}:{{ with .digest }}{{ regexReplaceAll "@.*" $tag "" }}@{{ . }}{{ else }}{{ $tag }}{{ end }}
{{- end -}}
{{- /*
The values below `flannel`, as JSON. After `helm upgrade --reuse-values` from flannel's chart before 0.28.3, the values are only those of that
old chart: they have image_cni in place of flannel_cni.image, and lack values that the old chart's templates set themselves. This template adds
the missing values.
*/ -}}
{{- define "weft.flannel" -}}
{{- $flannel := deepCopy .Values.flannel }}
{{- if not (hasKey $flannel "flannel_cni") }}
{{- $tolerations := list (dict "effect" "NoExecute" "operator" "Exists") (dict "effect" "NoSchedule" "operator" "Exists") }}
{{- $resources := dict "requests" (dict "cpu" "100m" "memory" "100Mi") }}
{{- $missing := dict "flannel_cni" (dict "image" $flannel.image_cni) "tolerations" $tolerations "resources" $resources }}
{{- $_ := set $missing "cniBinDir" "/opt/cni/bin" }}
{{- $_ := set $missing "cniConfDir" "/etc/cni/net.d" }}
{{- $_ := set $missing "cniConf" (.Files.Get "files/cni-conf.json") }}
{{- range $name, $value := $missing }}{{ if not (hasKey $flannel $name) }}{{ $_ := set $flannel $name $value }}{{ end }}{{ end }}
{{- end }}
{{- toJson $flannel }}
{{- end -}}
{{- /* The node affinity of weft's pods as JSON. */ -}}
{{- define "weft.affinity" -}}
{{- $linux := dict "key" "kubernetes.io/os" "operator" "In" "values" (list "linux") }}
{{- $terms := dict "nodeSelectorTerms" (list (dict "matchExpressions" (list $linux))) }}
{{- $nodes := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $terms) }}
{{- toJson (default $nodes (default (dict) .Values.weft).affinity) }}
{{- end -}}
{{- /* The network configuration as JSON. It is built as a value, so that it needs no quoting. */ -}}
{{- define "weft.netConf" -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) }}{{ fail "weft needs the cluster's pod network: set podCidr, podCidrv6 or both" }}{{ end }}
{{- $flannel := .Values.flannel }}
{{- $backend := dict "Type" $flannel.backend }}
{{- $port := "Port" }}
{{- if eq $flannel.backend "wireguard" }}{{ $port = "ListenPort" }}{{ end }}
{{- with $flannel.backendPort }}{{ $_ := set $backend $port (int .) }}{{ end }}
{{- with $flannel.mtu }}{{ $_ := set $backend "MTU" (int .) }}{{ end }}
{{- if eq $flannel.backend "vxlan" }}
{{- with $flannel.vni }}{{ $_ := set $backend "VNI" (int .) }}{{ end }}
{{- with $flannel.GBP }}{{ $_ := set $backend "GBP" . }}{{ end }}
{{- with $flannel.macPrefix }}{{ $_ := set $backend "MacPrefix" . }}{{ end }}
{{- end }}
{{- with $flannel.directRouting }}{{ $_ := set $backend "DirectRouting" . }}{{ end }}
{{- if eq $flannel.backend "wireguard" }}
{{- with $flannel.psk }}{{ $_ := set $backend "PSK" . }}{{ end }}
{{- with $flannel.backendPortv6 }}{{ $_ := set $backend "ListenPortV6" (int .) }}{{ end }}
{{- with $flannel.keepaliveInterval }}{{ $_ := set $backend "PersistentKeepaliveInterval" (int .) }}{{ end }}
{{- /* flannel's chart copies tunnelMode into JSON without adding quotes, so in flannel's chart the value itself must contain quotes. */ -}}
{{- with $flannel.tunnelMode }}{{ $_ := set $backend "Mode" (trimAll "\"" .) }}{{ end }}
{{- end }}
{{- $weft := default (dict) .Values.weft }}
{{- range $name, $value := default (dict) $weft.backend }}{{ $_ := set $backend $name $value }}{{ end }}
{{- $net := dict "Backend" $backend }}
{{- if .Values.podCidr }}{{ $_ := set $net "Network" .Values.podCidr }}{{ else }}{{ $_ := set $net "EnableIPv4" false }}{{ end }}
{{- with .Values.podCidrv6 }}{{ $_ := set $net "EnableIPv6" true }}{{ $_ := set $net "IPv6Network" . }}{{ end }}
{{- /* In flannel's chart v0.25.5 the default is the string `false,` with a comma. */ -}}
{{- if hasPrefix "true" (toString $flannel.enableNFTables) }}{{ $_ := set $net "EnableNFTables" true }}{{ end }}
{{- /* YAML parses a key that has only digits as a number. */ -}}
{{- with $backend.PSK }}{{ $_ := set $backend "PSK" (kindIs "string" . | ternary . (toJson .)) }}{{ end }}
{{- toJson $net }}
{{- end -}}
