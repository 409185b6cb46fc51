// kube-cluster.ts - a Kubernetes cluster on this machine: its servers in the lab's switch, and nodes with containerd on the lab's hosts.
//
// All programs are real and of one version (scripts/cluster-programs.mjs). No registry is reachable, so the images are made here.

import type { ChildProcess } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { ended, output } from '../../lab/command.ts'
import { createLab, EVENT_MS, SWITCH_ADDRESS, type Lab, type Pod } from '../../lab/lab.ts'
import { ARCHITECTURES } from '../../scripts/release/architectures.mjs'
import { imageBase } from '../../scripts/release/image-base.mjs'
import type { Emulation } from './emulated-node.ts'
import { writeImage, writePause } from './image-archive.ts'
import { createKubeNode, type KubeNode, type ProxyMode } from './kube-node.ts'
import { makeAuthority, type Authority, type Certificate } from './kube-pki.ts'
import { soon } from './kubelet.ts'

/** The pod networks and the Service networks of the cluster. */
export const PODS = { ipv4: '10.244.0.0/16', ipv6: 'fd00:244::/56' } as const
const SERVICES = '10.96.0.0/16,fd00:96::/112'
const API_SERVICE = '10.96.0.1'
const DNS_SERVICE = '10.96.0.10'
const API = `https://${SWITCH_ADDRESS}:6443`
const TEST_IMAGE = 'localhost/test:1'
const COREDNS_IMAGE = 'localhost/coredns:1'

/** The names of the images in flannel's and in weft's manifests. */
export const FLANNEL_IMAGES = {
  flannel: 'ghcr.io/flannel-io/flannel:v0.28.9',
  plugin: [
    'ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel2',
    'ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel3',
  ],
} as const

export interface PodObject {
  readonly metadata: { readonly name: string; readonly uid: string; readonly deletionTimestamp?: string }
  readonly spec: { readonly nodeName: string }
  readonly status: {
    readonly podIP?: string
    readonly podIPs?: readonly { readonly ip: string }[]
    readonly conditions?: readonly { readonly type: string; readonly status: string }[]
    readonly containerStatuses?: readonly { readonly restartCount: number; readonly image: string }[]
  }
}

/** A program of the control plane, which can be stopped and started again. */
interface Server {
  start(more?: readonly string[]): Promise<void>
  stop(): Promise<void>
}

export interface KubeCluster<Nodes extends readonly KubeNode[] = readonly [KubeNode, KubeNode, KubeNode]> {
  readonly lab: Lab
  readonly nodes: Nodes
  /** The folder in which `sh` runs. */
  readonly work: string
  readonly versions: string
  readonly api: Server
  /** kube-controller-manager. `start` accepts further flags. */
  readonly manager: Server
  /** Runs a shell script with this cluster's kubectl. Rejects if it fails. */
  sh(script: string, env?: Readonly<Record<string, string>>): Promise<string>
  kubectl(...words: string[]): Promise<string>
  apply(...objects: object[]): Promise<void>
  get<T>(...words: string[]): Promise<T>
  /** Returns the pods of a namespace that these labels select, except those that are being deleted. */
  pods(namespace: string, labels: string): Promise<readonly PodObject[]>
  /** Resolves when each node has one pod with these labels, all of them ready. Returns the pods in the order of the nodes. */
  podOnEachNode(namespace: string, labels: string, on?: readonly KubeNode[]): Promise<readonly PodObject[]>
  /** Returns a place in a pod's network namespace. */
  enter(pod: PodObject): Promise<Pod>
  /** Returns the end of the logs of all programs, for the report of a failure. */
  logs(): string
  /** Returns the state of the pods, the last events and the logs of weft's pods. */
  describe(): Promise<string>
  close(): Promise<void>
}

const isReady = ({ status }: PodObject): boolean =>
  status.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') ?? false

const kubeconfig = (server: string, caFile: string, { cert, key }: Certificate): string =>
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'cluster',
    clusters: [{ name: 'cluster', cluster: { server, 'certificate-authority': caFile } }],
    users: [{ name: 'user', user: { 'client-certificate': cert, 'client-key': key } }],
    contexts: [{ name: 'cluster', context: { cluster: 'cluster', user: 'user' } }],
  })

/** Returns the name of an architecture in container images. */
const platformOf = ({ platform }: (typeof ARCHITECTURES)[number]): string => platform.architecture

/**
 * Makes the images of the tests' pods, of CoreDNS, and of flannel, for the nodes of one architecture. Returns their archives. The images of
 * a foreign architecture have programs of this machine where one program is enough, because runc is this machine's.
 */
async function makeImages(
  programs: string,
  folder: string,
  architecture: (typeof ARCHITECTURES)[number],
): Promise<string[]> {
  mkdirSync(folder, { recursive: true })
  const layer = (name: string, files: Readonly<Record<string, string>>): string => {
    const tree = join(folder, `${name}-layer`)
    for (const [path, from] of Object.entries(files)) {
      mkdirSync(join(tree, path, '..'), { recursive: true })
      copyFileSync(from, join(tree, path))
      chmodSync(join(tree, path), 0o755)
    }
    mkdirSync(join(tree, 'tmp'), { recursive: true })
    return tree
  }
  const busybox = '/bin/busybox'
  const copying = layer('copying', { 'bin/busybox': busybox })
  symlinkSync('busybox', join(copying, 'bin/cp'))
  // The base has the programs of weft's and flannel's images: ip, iptables, nft, wg, and a busybox that can resolve names.
  const base = imageBase(architecture)
  const web = join(folder, 'web-layer')
  mkdirSync(join(web, 'usr/bin'), { recursive: true })
  for (const each of ['httpd', 'wget', 'mkdir']) symlinkSync('busybox', join(web, 'usr/bin', each))
  const program = (name: string): string => join(programs, name)
  const image = (
    file: string,
    name: string,
    layers: readonly string[],
    entrypoint: readonly string[],
  ): Promise<string> =>
    writeImage(join(folder, file), {
      name,
      layers,
      entrypoint,
      env: ['PATH=/usr/sbin:/usr/bin:/sbin:/bin'],
      architecture: platformOf(architecture),
    })
  const plugin = layer('plugin', { flannel: program('flannel-cni') })
  const flannel = layer('flannel', {
    'opt/bin/flanneld': program('flanneld'),
    'opt/bin/install-conf': program('flannel-install-conf'),
  })
  return [
    await writePause(join(folder, 'pause'), platformOf(architecture)),
    await image('test', TEST_IMAGE, [base, web], ['/bin/sh']),
    await image('coredns', COREDNS_IMAGE, [layer('coredns', { coredns: program('coredns') })], ['/coredns']),
    await image('flannel', FLANNEL_IMAGES.flannel, [base, flannel], ['/opt/bin/flanneld']),
    ...(await Promise.all(
      FLANNEL_IMAGES.plugin.map((name, index) => image(`plugin${index}`, name, [copying, plugin], ['/flannel'])),
    )),
  ]
}

interface ClusterOptions<Proxies extends readonly ProxyMode[]> {
  /** The folder with the programs. */
  readonly programs: string
  /** The archives of weft's images. */
  readonly images: readonly string[]
  /** How kube-proxy of each node works. The cluster has one node for each of them. */
  readonly proxies: Proxies
  /** Makes the last node one of another architecture. */
  readonly emulation?: Emulation
}

/** Starts the cluster without a network: its nodes are not ready until a network is installed. */
export async function startCluster<const Proxies extends readonly ProxyMode[]>({
  programs,
  images,
  proxies,
  emulation,
}: ClusterOptions<Proxies>): Promise<KubeCluster<{ readonly [Index in keyof Proxies]: KubeNode }>> {
  const lab = await createLab({ hosts: proxies.length, families: ['ipv4', 'ipv6'] })
  const work = join(lab.folder, 'work')
  const logs = join(lab.folder, 'logs')
  for (const each of [work, logs, join(lab.folder, 'etcd')]) mkdirSync(each)
  const program = (name: string): string => join(programs, name)
  const authority = await makeAuthority(join(lab.folder, 'pki'))
  const own = ARCHITECTURES.find(({ name }) => name === process.arch)!
  const archives = await makeImages(programs, join(lab.folder, 'images'), own)
  const foreign = emulation && (await makeImages(programs, join(lab.folder, 'foreign'), emulation.architecture))
  const config = async (name: string, subject: string, server = API): Promise<string> => {
    const file = join(lab.folder, `${name}.kubeconfig`)
    writeFileSync(file, kubeconfig(server, authority.ca.cert, await authority.issue(name, subject)))
    return file
  }
  const admin = await config('admin', '/O=system:masters/CN=admin')

  const env = (more: Readonly<Record<string, string>> = {}): string[] => [
    'env',
    '-C',
    work,
    `PATH=${programs}:${process.env['PATH']}`,
    `KUBECONFIG=${admin}`,
    ...Object.entries(more).map(([name, value]) => `${name}=${value}`),
  ]
  const kubectl = (...words: string[]): Promise<string> =>
    lab.switch.output([...env(), 'kubectl', ...words], { timeoutMs: 5 * EVENT_MS })

  const server = (name: string, words: readonly string[], isUp: () => Promise<unknown>): Server => {
    let child: ChildProcess | undefined
    const log = join(logs, `${name}.log`)
    return {
      async start(more = []) {
        child = lab.switch.spawn([program(name), ...words, ...more])
        const started = child
        for (const stream of [started.stdout!, started.stderr!])
          stream.on('data', (data: Buffer) => appendFileSync(log, data))
        await soon(async () => {
          if (started.exitCode !== null) throw new Error(`${name} ended with ${started.exitCode}: ${endOf(log, 20)}`)
          await isUp()
        })
      },
      async stop() {
        child?.kill('SIGKILL')
        if (child) await ended(child)
      },
    }
  }
  const servers = await controlPlane({ lab, authority, server, kubectl, config })

  const nodes: KubeNode[] = []
  for (const [index, host] of lab.hosts.entries()) {
    const parts = {
      programs,
      host,
      folder: join(lab.folder, `node-${host.name}`),
      proxyMode: proxies[index]!,
      nodeIp: `${host.address},${host.ipv6}`,
      caFile: authority.ca.cert,
      kubelet: await config(`kubelet-${host.name}`, `/O=system:nodes/CN=system:node:${host.name}`),
      proxy: await config(`proxy-${host.name}`, '/CN=system:kube-proxy'),
      clusterDns: DNS_SERVICE,
      podNetworks: `${PODS.ipv4},${PODS.ipv6}`,
      emulation: host === lab.hosts.at(-1) ? emulation : undefined,
    }
    nodes.push(createKubeNode(parts))
  }

  const places = new Map<string, Pod>()
  let adopted = 0
  const cluster: KubeCluster<{ readonly [Index in keyof Proxies]: KubeNode }> = {
    lab,
    nodes: nodes as unknown as { readonly [Index in keyof Proxies]: KubeNode },
    work,
    versions: [
      (await output([program('kubelet'), '--version'])).trim(),
      (await output([program('containerd'), '--version'])).trim(),
      (await output([program('runc'), '--version'])).split('\n')[0],
      (await output([program('etcd'), '--version'])).split('\n')[0],
    ].join(', '),
    api: servers.api,
    manager: servers.manager,
    sh: (script, more) => lab.switch.output([...env(more), 'bash', '-ec', script], { timeoutMs: 10 * EVENT_MS }),
    kubectl,
    async apply(...objects) {
      const text = JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects })
      await lab.switch.output([...env(), 'kubectl', 'apply', '-f', '-'], { input: text, timeoutMs: EVENT_MS })
    },
    get: async <T>(...words: string[]) => JSON.parse(await kubectl('get', '-o', 'json', ...words)) as T,
    async pods(namespace, labels) {
      const { items } = await cluster.get<{ items: PodObject[] }>('pods', '-n', namespace, '-l', labels)
      return items.filter(({ metadata }) => metadata.deletionTimestamp === undefined)
    },
    podOnEachNode: (namespace, labels, on = nodes) =>
      soon(async () => {
        const pods = await cluster.pods(namespace, labels)
        return on.map(({ name }) => {
          const here = pods.filter(({ spec }) => spec.nodeName === name)
          if (here.length !== 1 || !isReady(here[0]!))
            throw new Error(
              `${labels} on ${name}: ${JSON.stringify(here.map(({ metadata, status }) => ({ metadata, status })))}`,
            )
          return here[0]!
        })
      }),
    async enter(pod) {
      const node = nodes.find(({ name }) => name === pod.spec.nodeName)!
      const file = await node.networkOf(pod.metadata.uid)
      const known = places.get(file)
      if (known) return known
      const place = await lab.adopt(`pod${adopted++}`, file)
      const addresses = (pod.status.podIPs ?? []).map(({ ip }) => ip)
      const ipv6 = addresses.find((address) => address.includes(':'))
      const entered = {
        ...place,
        address: addresses.find((address) => !address.includes(':')) ?? '',
        ...(ipv6 === undefined ? {} : { ipv6 }),
      }
      places.set(file, entered)
      return entered
    },
    logs() {
      const files = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler'].map((name) =>
        join(logs, `${name}.log`),
      )
      for (const { name } of nodes)
        for (const each of ['containerd', 'kubelet', 'kube-proxy'])
          files.push(join(lab.folder, `node-${name}/logs/${each}.log`))
      return files
        .filter(existsSync)
        .map((file) => `${file}:\n${endOf(file, 15)}`)
        .join('\n')
    },
    async describe() {
      const show =
        'kubectl get nodes,pods -A -o wide; kubectl get events -A --sort-by=.lastTimestamp | tail -25;' +
        ' for each in $(kubectl -n kube-flannel get pods -o name); do echo "$each"; kubectl -n kube-flannel logs --all-containers --tail=25 "$each"; done'
      const { stdout, stderr } = await lab.switch.run([...env(), 'sh', '-c', show], { timeoutMs: EVENT_MS })
      return `${stdout}\n${stderr}`
    },
    async close() {
      for (const node of nodes) await node.close()
      await lab.close()
    },
  }
  try {
    await servers.etcd.start()
    await servers.api.start()
    await Promise.all([servers.manager.start(), servers.scheduler.start()])
    for (const node of nodes) {
      await node.start()
      await node.load([...(foreign && node === nodes.at(-1) ? foreign : archives), ...images])
    }
    await soon(async () => {
      const { items } = await cluster.get<{ items: object[] }>('nodes')
      if (items.length < nodes.length) throw new Error(`${items.length} nodes registered: ${cluster.logs()}`)
    })
    return cluster
  } catch (error) {
    const said = cluster.logs()
    await cluster.close()
    throw new Error(`the cluster does not start: ${String(error)}\n${said}`, { cause: error })
  }
}

const endOf = (file: string, lines: number): string =>
  readFileSync(file, 'utf8').trimEnd().split('\n').slice(-lines).join('\n')

interface PlaneParts {
  readonly lab: Lab
  readonly authority: Authority
  readonly server: (name: string, words: readonly string[], isUp: () => Promise<unknown>) => Server
  readonly kubectl: (...words: string[]) => Promise<string>
  readonly config: (name: string, subject: string) => Promise<string>
}

/** Describes the servers of the control plane, and makes their certificates. */
async function controlPlane({ lab, authority, server, kubectl, config }: PlaneParts) {
  const at = (name: string): string => join(lab.folder, name)
  const etcd = 'http://127.0.0.1:2379'
  const names = ['kubernetes', 'kubernetes.default', 'kubernetes.default.svc', 'kubernetes.default.svc.cluster.local']
  const addresses = ['127.0.0.1', SWITCH_ADDRESS, API_SERVICE, 'fd00:96::1']
  const alternatives = [...names.map((name) => `DNS:${name}`), ...addresses.map((address) => `IP:${address}`)]
  const serving = await authority.issue('apiserver', '/CN=kubernetes', alternatives)
  const toKubelet = await authority.issue('apiserver-kubelet', '/O=system:masters/CN=apiserver-kubelet')
  const accounts = { cert: at('pki/sa.pub'), key: at('pki/sa.key') }
  await output(['openssl', 'genrsa', '-out', accounts.key, '2048'])
  await output(['openssl', 'rsa', '-in', accounts.key, '-pubout', '-out', accounts.cert])
  const manager = await config('manager', '/CN=system:kube-controller-manager')
  const scheduler = await config('scheduler', '/CN=system:kube-scheduler')
  const isTcpOpen = (port: number) => async (): Promise<unknown> =>
    lab.switch.output(['curl', '--silent', '--insecure', '--fail', `https://127.0.0.1:${port}/healthz`])
  const flags = (all: Readonly<Record<string, string>>): string[] =>
    Object.entries(all).map(([name, value]) => `--${name}=${value}`)
  return {
    etcd: server(
      'etcd',
      flags({
        'data-dir': at('etcd'),
        'listen-client-urls': etcd,
        'advertise-client-urls': etcd,
        'unsafe-no-fsync': 'true',
        'log-level': 'warn',
      }),
      () => lab.switch.output(['curl', '--silent', '--fail', `${etcd}/health`]),
    ),
    api: server(
      'kube-apiserver',
      flags({
        'etcd-servers': etcd,
        'advertise-address': SWITCH_ADDRESS,
        'secure-port': '6443',
        'tls-cert-file': serving.cert,
        'tls-private-key-file': serving.key,
        'client-ca-file': authority.ca.cert,
        'kubelet-client-certificate': toKubelet.cert,
        'kubelet-client-key': toKubelet.key,
        'kubelet-preferred-address-types': 'InternalIP',
        'service-account-issuer': 'https://kubernetes.default.svc.cluster.local',
        'service-account-signing-key-file': accounts.key,
        'service-account-key-file': accounts.cert,
        'service-cluster-ip-range': SERVICES,
        'authorization-mode': 'Node,RBAC',
        'enable-admission-plugins': 'NodeRestriction',
        'allow-privileged': 'true', // as kubeadm sets it
        'shutdown-delay-duration': '0s',
      }),
      async () => {
        await kubectl('get', '--raw', '/readyz')
        await kubectl('get', 'namespace', 'default')
      },
    ),
    manager: server(
      'kube-controller-manager',
      flags({
        kubeconfig: manager,
        'allocate-node-cidrs': 'true',
        'cluster-cidr': `${PODS.ipv4},${PODS.ipv6}`,
        'service-cluster-ip-range': SERVICES,
        'root-ca-file': authority.ca.cert,
        'service-account-private-key-file': accounts.key,
        'use-service-account-credentials': 'true',
        'leader-elect': 'false',
      }),
      isTcpOpen(10257),
    ),
    scheduler: server('kube-scheduler', flags({ kubeconfig: scheduler, 'leader-elect': 'false' }), isTcpOpen(10259)),
  }
}

/** The objects of CoreDNS, as kubeadm installs it, with one pod and without a server outside the cluster. */
export function corednsObjects(): object[] {
  const metadata = { name: 'coredns', namespace: 'kube-system' }
  const labels = { 'k8s-app': 'kube-dns' }
  const corefile =
    '.:53 {\n errors\n health\n ready\n kubernetes cluster.local in-addr.arpa ip6.arpa\n cache 5\n reload\n loadbalance\n}\n'
  const read = ['list', 'watch']
  return [
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
    {
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'ClusterRole',
      metadata: { name: 'system:coredns' },
      rules: [
        { apiGroups: [''], resources: ['endpoints', 'services', 'pods', 'namespaces'], verbs: read },
        { apiGroups: ['discovery.k8s.io'], resources: ['endpointslices'], verbs: read },
      ],
    },
    {
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'ClusterRoleBinding',
      metadata: { name: 'system:coredns' },
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'system:coredns' },
      subjects: [{ kind: 'ServiceAccount', ...metadata }],
    },
    { apiVersion: 'v1', kind: 'ConfigMap', metadata, data: { Corefile: corefile } },
    {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata,
      spec: {
        replicas: 1,
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: {
            serviceAccountName: 'coredns',
            dnsPolicy: 'Default',
            containers: [
              {
                name: 'coredns',
                image: COREDNS_IMAGE,
                args: ['-conf', '/etc/coredns/Corefile'],
                readinessProbe: { httpGet: { path: '/ready', port: 8181 }, periodSeconds: 2 },
                volumeMounts: [{ name: 'config', mountPath: '/etc/coredns' }],
              },
            ],
            volumes: [{ name: 'config', configMap: { name: 'coredns' } }],
          },
        },
      },
    },
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { ...metadata, name: 'kube-dns' },
      spec: {
        clusterIP: DNS_SERVICE,
        selector: labels,
        ports: [
          { name: 'dns', port: 53, protocol: 'UDP' },
          { name: 'dns-tcp', port: 53, protocol: 'TCP' },
        ],
      },
    },
  ]
}

/** The objects of a web server on each node, which answers with the name of its node, and of its Service. */
export function webObjects(): object[] {
  const labels = { app: 'web' }
  const script = 'mkdir -p /tmp/www && echo "$NODE" > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www'
  return [
    {
      apiVersion: 'apps/v1',
      kind: 'DaemonSet',
      metadata: { name: 'web', namespace: 'default' },
      spec: {
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: {
            terminationGracePeriodSeconds: 0,
            containers: [
              {
                name: 'web',
                image: TEST_IMAGE,
                command: ['sh', '-c', script],
                env: [{ name: 'NODE', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } }],
              },
            ],
          },
        },
      },
    },
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'web', namespace: 'default' },
      spec: { selector: labels, ports: [{ port: 80, targetPort: 8080 }] },
    },
  ]
}

/** Waits until the condition of each node is as given. */
export const nodesAre = (
  cluster: Pick<KubeCluster<readonly KubeNode[]>, 'nodes' | 'get'>,
  isReadyNode: boolean,
): Promise<void> =>
  soon(async () => {
    for (const { name } of cluster.nodes) {
      const { status } = await cluster.get<{
        status: { conditions: { type: string; status: string; message: string }[] }
      }>('node', name)
      const ready = status.conditions.find(({ type }) => type === 'Ready')
      if ((ready?.status === 'True') !== isReadyNode) throw new Error(`${name}: ${ready?.message}`)
    }
  })
