// chart-variations.ts - values of weft's chart which together use every part of its templates.

/** A variation of the chart. */
interface ChartVariation {
  readonly name: string
  readonly values: object
  /** The minor version of Kubernetes 1 from which on the API server has all fields of the variation. */
  readonly since?: number
}

const hostPath = { path: '/etc/pki' }

export const CHART_VARIATIONS: readonly ChartVariation[] = [
  { name: 'the default values', values: {} },
  { name: 'only the values of flannel’s chart', values: { weft: null, netpol: null } },
  ...['udp', 'host-gw', 'ipip', 'alloc'].map((backend) => ({ name: backend, values: { flannel: { backend } } })),
  {
    name: 'wireguard with a pre-shared key, which is in a Secret',
    values: { flannel: { backend: 'wireguard', psk: 'a key', keepaliveInterval: 25, tunnelMode: 'separate' } },
  },
  { name: 'a Secret of the operator', values: { weft: { configSecret: 'mine' } } },
  { name: 'IPv4 and IPv6', values: { podCidrv6: 'fd00:244::/56' } },
  { name: 'IPv6 alone', values: { podCidr: '', podCidrv6: 'fd00:244::/56' } },
  { name: 'network policies', values: { netpol: { enabled: true } } },
  { name: 'no health port', values: { flannel: { healthz: { port: 0 } } } },
  { name: 'no CNI configuration', values: { flannel: { skipCNIConfigInstallation: true, enableNFTables: true } } },
  {
    name: 'monitoring and the network status',
    values: {
      weft: {
        statusIp: '0.0.0.0',
        monitoring: { enabled: true, labels: { release: 'prometheus' } },
        network: { port: 8287, tokenSecret: 'weft-nodes' },
      },
    },
  },
  {
    name: 'every value of the pods',
    values: {
      global: { imagePullSecrets: [{ name: 'pull' }] },
      flannel: {
        image: { digest: `sha256:${'a'.repeat(64)}`, pullPolicy: 'Always' },
        resources: { requests: { cpu: 0.5, memory: '100Mi' }, limits: { memory: '1Gi' } },
        nodeSelector: { role: 'worker' },
        tolerations: [{ key: 'a', operator: 'Equal', value: 'b', effect: 'NoSchedule' }],
        podAnnotations: { 'example.com/a': 'b' },
      },
      weft: {
        legacyIptables: true,
        fastPath: true,
        env: [{ name: 'FLANNELD_V', value: '1' }],
        podSecurityContext: { seLinuxOptions: { type: 'spc_t' } },
        containerSecurityContext: { runAsUser: 0 },
        extraVolumes: [{ name: 'certs', hostPath }],
        extraVolumeMounts: [{ name: 'certs', mountPath: '/etc/pki', readOnly: true }],
        revisionHistoryLimit: 3,
        podLabels: { team: 'net' },
        serviceAccount: { annotations: { 'example.com/role': 'arn' } },
        terminationGracePeriodSeconds: 10,
        affinity: { nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [] } },
        priorityClassName: 'system-cluster-critical',
      },
    },
  },
  { name: 'OnDelete', values: { weft: { updateStrategy: { type: 'OnDelete', rollingUpdate: null } } } },
  {
    name: 'an AppArmor profile',
    values: { weft: { podSecurityContext: { appArmorProfile: { type: 'Unconfined' } } } },
    since: 30,
  },
]
