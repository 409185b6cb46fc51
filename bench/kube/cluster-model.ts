// cluster-model.ts - the Node objects of the benchmark `kube`, and the computation of its figures from the metrics of an
// API server. Does no I/O.

export const PREFIX = 'flannel.alpha.coreos.com'
/** The number of images in the status of a Node object. A kubelet reports at most 50 (nodeStatusMaxImages). */
const IMAGES = 30

export const nodeName = (index: number): string => `node-${String(index).padStart(5, '0')}`
/** Returns the public IP of node number `index`. */
export const hostOf = (index: number): string => `172.16.${index >> 8}.${index & 255}`
/** Returns the data that the backend vxlan publishes for node number `index`. */
export const backendDataOf = (index: number) => ({
  VNI: 1,
  VtepMAC: `02:00:00:00:${hex(index >> 8, 2)}:${hex(index & 255, 2)}`,
})

const hex = (value: number, digits: number): string => value.toString(16).padStart(digits, '0')
/** Returns 64 hexadecimal digits that look random, because a real digest does not compress well. */
function digest(seed: number): string {
  let text = ''
  let state = (seed * 2_654_435_761 + 1) >>> 0
  while (text.length < 64) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    text += hex(state >>> 16, 4)
  }
  return text
}

const TIME = '2026-01-01T00:00:00Z'
const CONDITIONS = ['MemoryPressure', 'DiskPressure', 'PIDPressure', 'Ready'] as const

function statusOf(index: number) {
  const conditions = CONDITIONS.map((type) => ({
    type,
    status: type === 'Ready' ? 'True' : 'False',
    lastHeartbeatTime: TIME,
    lastTransitionTime: TIME,
    reason: type === 'Ready' ? 'KubeletReady' : `KubeletHasNo${type}`,
    message: type === 'Ready' ? 'kubelet is posting ready status' : `kubelet has no ${type}`,
  }))
  const network = {
    type: 'NetworkUnavailable',
    status: 'False',
    lastHeartbeatTime: TIME,
    lastTransitionTime: TIME,
    reason: 'FlannelIsUp',
    message: 'Flannel is running on this node',
  }
  return {
    capacity: { cpu: '16', 'ephemeral-storage': '103079844Ki', memory: '65805836Ki', pods: '110' },
    allocatable: { cpu: '15800m', 'ephemeral-storage': '94998384074', memory: '64679436Ki', pods: '110' },
    conditions: [network, ...conditions],
    addresses: [
      { type: 'InternalIP', address: hostOf(index) },
      { type: 'Hostname', address: nodeName(index) },
    ],
    daemonEndpoints: { kubeletEndpoint: { Port: 10_250 } },
    nodeInfo: {
      machineID: digest(index).slice(0, 32),
      systemUUID: digest(index + 1).slice(0, 36),
      bootID: digest(index + 2).slice(0, 36),
      kernelVersion: '6.1.0-30-amd64',
      osImage: 'Debian GNU/Linux 12 (bookworm)',
      containerRuntimeVersion: 'containerd://2.1.4',
      kubeletVersion: 'v1.34.1',
      kubeProxyVersion: '',
      operatingSystem: 'linux',
      architecture: 'amd64',
    },
    images: Array.from({ length: IMAGES }, (_, number) => {
      const name = `registry.example.com/team-${number % 7}/service-${number}`
      // Most nodes of a cluster have the same images, but in versions of different age.
      const version = (index + number) % 5
      return {
        names: [`${name}@sha256:${digest(number * 5 + version)}`, `${name}:v1.${version}.${number}`],
        sizeBytes: 50_000_000 + number * 1_000_003 + version,
      }
    }),
  }
}

/**
 * Returns the entries of `managedFields` of a node that a kubelet, kube-controller-manager and flannel or weft have
 * written. They are part of the metadata, so a watch of only the metadata has them too.
 */
function managedFields() {
  const keys = (...names: string[]) => Object.fromEntries(names.map((name) => [`f:${name}`, {}]))
  const entry = (manager: string, fields: object, subresource = '') => ({
    manager,
    operation: 'Update',
    apiVersion: 'v1',
    time: TIME,
    fieldsType: 'FieldsV1',
    fieldsV1: fields,
    ...(subresource === '' ? {} : { subresource }),
  })
  const annotations = keys(
    ...['backend-data', 'backend-type', 'kube-subnet-manager', 'public-ip'].map((name) => `${PREFIX}/${name}`),
  )
  const times = { '.': {}, ...keys('lastHeartbeatTime', 'lastTransitionTime', 'message', 'reason', 'status', 'type') }
  const conditions = (...types: string[]) =>
    Object.fromEntries(types.map((type) => [`k:{"type":"${type}"}`, times] as const))
  return [
    entry('kube-controller-manager', { 'f:spec': { ...keys('podCIDR'), 'f:podCIDRs': { '.': {} } } }),
    entry(
      'flanneld',
      {
        'f:metadata': { 'f:annotations': annotations },
        'f:status': { 'f:conditions': conditions('NetworkUnavailable') },
      },
      'status',
    ),
    entry('kubelet', { 'f:status': { 'f:conditions': conditions(...CONDITIONS), ...keys('images') } }, 'status'),
  ]
}

/** Returns node number `index` of the cluster, as flannel, weft and a kubelet have left it. */
export function nodeObject(index: number) {
  const name = nodeName(index)
  const podCIDR = `10.${(index >> 8) + 1}.${index & 255}.0/24`
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      labels: {
        'beta.kubernetes.io/arch': 'amd64',
        'beta.kubernetes.io/os': 'linux',
        'kubernetes.io/arch': 'amd64',
        'kubernetes.io/hostname': name,
        'kubernetes.io/os': 'linux',
        'node.kubernetes.io/instance-type': 'm5.4xlarge',
        'topology.kubernetes.io/region': 'region-1',
        'topology.kubernetes.io/zone': `region-1${'abc'[index % 3]}`,
      },
      annotations: {
        [`${PREFIX}/backend-data`]: JSON.stringify(backendDataOf(index)),
        [`${PREFIX}/backend-type`]: 'vxlan',
        [`${PREFIX}/kube-subnet-manager`]: 'true',
        [`${PREFIX}/public-ip`]: hostOf(index),
        'node.alpha.kubernetes.io/ttl': '0',
        'volumes.kubernetes.io/controller-managed-attach-detach': 'true',
      },
      managedFields: managedFields(),
    },
    spec: { podCIDR, podCIDRs: [podCIDR] },
    status: statusOf(index),
  }
}

/** The state of an API server, from its metrics. */
export interface ServerState {
  /** The CPU time in seconds that the API server has used since its start. */
  readonly cpu: number
  /** The number of requests for nodes, by verb. A watch is counted when it ends. */
  readonly requests: Readonly<Record<string, number>>
  /** The number of requests that the API server refused because it was busy (HTTP status 429). */
  readonly refused: number
  /** The number of listings of nodes that the API server has read from etcd, and not from its watch cache. */
  readonly fromEtcd: number
}

/**
 * Reads the metrics of an API server in the text format of Prometheus. Throws an Error if the metrics lack the CPU time
 * or the requests.
 */
export function readServerState(text: string): ServerState {
  const cpu = Number(/^process_cpu_seconds_total (\S+)$/m.exec(text)?.[1])
  const requests: Record<string, number> = {}
  let [refused, fromEtcd] = [0, 0]
  for (const [, metric, labels = '', value] of text.matchAll(
    /^(apiserver_request_total|apiserver_storage_list_total)\{(.*)\} (\S+)$/gm,
  )) {
    const label = (name: string): string => new RegExp(`(?:^|,)${name}="([^"]*)"`).exec(labels)?.[1] ?? ''
    if (metric === 'apiserver_storage_list_total') {
      if (label('resource') === 'nodes' && label('storage') !== 'watchcache') fromEtcd += Number(value)
      continue
    }
    if (label('code') === '429') refused += Number(value)
    if (label('resource') !== 'nodes') continue
    const verb = label('verb')
    requests[verb] = (requests[verb] ?? 0) + Number(value)
  }
  if (!(cpu > 0) || Object.keys(requests).length === 0)
    throw new Error('the API server has no metrics process_cpu_seconds_total and apiserver_request_total of nodes')
  return { cpu, requests, refused, fromEtcd }
}

/** Returns how many requests with each verb the API server got between two states. */
export function requestsBetween(before: ServerState, after: ServerState): Readonly<Record<string, number>> {
  const numbers = Object.entries(after.requests).map(
    ([verb, count]) => [verb, count - (before.requests[verb] ?? 0)] as const,
  )
  return Object.fromEntries(numbers.filter(([, count]) => count > 0))
}

/**
 * Returns the CPU time in seconds that an API server needs if all nodes of a cluster restart their daemons at the same
 * time. Each daemon costs `start` seconds. Each daemon also writes its node `writes` times, and the API server sends
 * each of these changes to all daemons for `event` seconds each.
 */
export const restartCpu = (
  nodes: number,
  { start, writes, event }: { readonly start: number; readonly writes: number; readonly event: number },
): number => nodes * start + nodes * nodes * writes * event
