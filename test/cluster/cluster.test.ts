// cluster.test.ts - `npm run test:cluster`: weft on a Kubernetes cluster of three nodes, from its installation to its removal.
//
// etcd, the servers of Kubernetes, kubelet, kube-proxy, containerd, runc, CoreDNS and the CNI plugins are the real programs
// (kube-cluster.ts). kube-proxy uses iptables on two nodes and nftables on one; before Kubernetes 1.31 iptables on all
// three. The tests run in their order on one cluster, because the start of a cluster takes minutes.

import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { output } from '../../lab/command.ts'
import { packageRoot, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { CHART_VARIATIONS } from '../support/chart-variations.ts'
import {
  corednsObjects,
  FLANNEL_IMAGES,
  nodesAre,
  PODS,
  startCluster,
  webObjects,
  type KubeCluster,
  type PodObject,
} from '../support/kube-cluster.ts'
import type { KubeNode } from '../support/kube-node.ts'
import { soon } from '../support/kubelet.ts'
import { printStep } from '../support/long-step.ts'
import { manualLines } from '../support/manual.ts'
import { HOSTS, needs, NODE } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

const MINUTE = 60_000
const PROGRAMS = process.env['WEFT_CLUSTER_PROGRAMS'] ?? ''
const HELM = process.env['WEFT_HELM'] ?? ''
const IMAGE_ARCHIVE = process.env['WEFT_CLUSTER_IMAGE'] ?? ''
const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
const publisher = JSON.parse(readFileSync(join(packageRoot, 'scripts/release/publisher.json'), 'utf8')) as {
  readonly image: string
}
const IMAGE = `${publisher.image}:${version}`
/** The same image by another name, so that a change to it is an update. */
const NEXT_IMAGE = `${publisher.image}:next`
const P = 'flannel.alpha.coreos.com'
const WEFT = ['kube-flannel', 'app=flannel'] as const
const WEB = ['default', 'app=web'] as const
const NO_PACKET_LOST = { lost: 0, errors: 0 }

const lacks = needs(
  HOSTS,
  'gcc',
  'busybox',
  'openssl',
  'jq',
  'nft',
  'iptables',
  'ping',
  'iperf3',
  'curl',
  'mmdebstrap',
  NODE,
)
let cluster: KubeCluster
/** The minor version of Kubernetes. */
let minor = 0

interface NodeObject {
  readonly metadata: { readonly annotations: Record<string, string>; readonly uid: string }
  readonly spec: { readonly podCIDR?: string; readonly podCIDRs?: readonly string[] }
}
const nodeObject = ({ name }: KubeNode): Promise<NodeObject> => cluster.get<NodeObject>('node', name)
const subnetEnv = (node: KubeNode): Record<string, string> =>
  Object.fromEntries(
    readFileSync(node.path('/run/flannel/subnet.env'), 'utf8')
      .trim()
      .split('\n')
      .map((line) => line.split('=') as [string, string]),
  )
/** Returns the subnet in each node's subnet.env, with its podCIDR. */
const subnets = async (): Promise<Record<string, readonly [string | undefined, string | undefined]>> =>
  Object.fromEntries(
    await Promise.all(
      cluster.nodes.map(async (node) => {
        const { spec } = await nodeObject(node)
        return [node.name, [subnetEnv(node)['FLANNEL_SUBNET']?.replace(/\.1\//, '.0/'), spec.podCIDR]] as const
      }),
    ),
  )
const weftPods = (on?: readonly KubeNode[]) => cluster.podOnEachNode(...WEFT, on)
const webPods = (on?: readonly KubeNode[]) => cluster.podOnEachNode(...WEB, on)
const weft = (pod: PodObject, ...words: string[]): Promise<string> =>
  cluster.kubectl('-n', 'kube-flannel', 'exec', pod.metadata.name, '-c', 'kube-flannel', '--', 'weft', ...words)
const inPod = (pod: PodObject, ...words: string[]): Promise<string> =>
  cluster.kubectl('exec', pod.metadata.name, '--', ...words)

/** Pings from each web pod to each other one, requests its page, and requests the Service by its name from each node. */
async function everythingTalks(): Promise<void> {
  const pods = await webPods()
  const places = await Promise.all(pods.map((pod) => cluster.enter(pod)))
  for (const from of places) for (const to of places) if (from !== to) await reach(from.namespace, to.address)
  for (const [index, pod] of pods.entries()) {
    for (const [other, to] of places.entries())
      if (other !== index)
        expect((await inPod(pod, 'wget', '-q', '-T', '10', '-O', '-', `http://${to.address}:8080/`)).trim()).toBe(
          cluster.nodes[other]!.name,
        )
    const said = await soon(() =>
      inPod(pod, 'wget', '-q', '-T', '10', '-O', '-', 'http://web.default.svc.cluster.local/'),
    )
    expect(cluster.nodes.map(({ name }) => name)).toContain(said.trim())
  }
}

/** Pings between the web pods of the first two nodes while `what` happens. Returns the result of the pings. */
async function whilePinging(what: () => Promise<unknown>) {
  const pods = await webPods()
  const [a, b] = (await Promise.all(pods.slice(0, 2).map((pod) => cluster.enter(pod)))) as [Pod, Pod]
  await reach(a.namespace, b.address)
  const pings = pinging(a, b, { everyS: 0.01 })
  await what()
  const pinged = await pings.stop()
  if (pinged.lost > 0) report(`lost pings: ${pinged.gaps.join(', ')}`)
  return pinged
}

const report = (line: string): void => void process.stdout.write(`  ${line}\n`)
const rollout = (): Promise<string> =>
  cluster.kubectl('-n', 'kube-flannel', 'rollout', 'status', 'daemonset/kube-flannel-ds', '--timeout=10m')

/** Sets the backend as docs/change-the-backend.md says, on all nodes together. */
async function setBackend(backend: object): Promise<void> {
  const config = JSON.stringify({ Network: PODS.ipv4, Backend: backend })
  const patch = JSON.stringify({ data: { 'net-conf.json': config } })
  await cluster.kubectl('-n', 'kube-flannel', 'patch', 'configmap', 'kube-flannel-cfg', '--patch', patch)
  const update = (maxSurge: number, maxUnavailable: number): Promise<string> => {
    const spec = JSON.stringify({ spec: { updateStrategy: { rollingUpdate: { maxSurge, maxUnavailable } } } })
    return cluster.kubectl('-n', 'kube-flannel', 'patch', 'daemonset', 'kube-flannel-ds', '--patch', spec)
  }
  await update(0, cluster.nodes.length)
  await cluster.kubectl('-n', 'kube-flannel', 'rollout', 'restart', 'daemonset/kube-flannel-ds')
  await rollout()
  await update(1, 0)
  await weftPods()
}

/** Returns the minor version of Kubernetes. */
async function kubernetesMinor(): Promise<number> {
  const said = await output([join(PROGRAMS, 'kube-proxy'), '--version'])
  const [, found] = /^Kubernetes v1\.(\d+)\./.exec(said) ?? []
  if (found === undefined) throw new Error(`kube-proxy --version printed ${JSON.stringify(said)}`)
  return Number(found)
}

beforeAll(async () => {
  if (lacks !== undefined) return
  if (PROGRAMS === '') throw new Error('WEFT_CLUSTER_PROGRAMS is not set; run `npm run test:cluster`')
  minor = await kubernetesMinor()
  printStep('a cluster of three nodes')
  cluster = await startCluster({
    programs: PROGRAMS,
    images: [IMAGE_ARCHIVE],
    // Before Kubernetes 1.31 a feature gate disables kube-proxy's nftables.
    proxies: ['iptables', minor < 31 ? 'iptables' : 'nftables', 'iptables'],
  })
  report(cluster.versions)
  for (const node of cluster.nodes) await node.tag(IMAGE, NEXT_IMAGE)
  await cluster.apply(...corednsObjects(), ...webObjects())
}, 30 * MINUTE)
afterEach(async ({ task }) => {
  if (task.result?.state !== 'fail') return
  const errors = task.result.errors?.map(({ message }) => message).join('\n')
  process.stdout.write(`${errors}\n${await cluster?.describe()}\n${cluster?.logs()}\n`)
})
afterAll(async () => await cluster?.close(), 5 * MINUTE)

describe('weft by its manifest', { timeout: 10 * MINUTE }, () => {
  it('makes the nodes ready, each with the subnet of its podCIDR', async () => {
    await nodesAre(cluster, false)
    cpSync(join(packageRoot, 'deploy/kubernetes'), join(cluster.work, 'deploy/kubernetes'), { recursive: true })
    const file = join(cluster.work, 'deploy/kubernetes/kustomization.yaml')
    const text = readFileSync(file, 'utf8')
    expect(text).toContain('newName: weft')
    writeFileSync(file, text.replace('newName: weft', `newName: ${publisher.image}`))
    await cluster.sh('kubectl apply -k deploy/kubernetes')
    await rollout()
    await nodesAre(cluster, true)
    for (const pod of await weftPods()) expect(pod.status.containerStatuses?.[0]?.restartCount).toBe(0)
    const found = await subnets()
    expect(new Set(Object.values(found).map(([, podCIDR]) => podCIDR)).size).toBe(3)
    for (const [subnet, podCIDR] of Object.values(found)) expect(subnet).toBe(podCIDR)
    for (const node of cluster.nodes)
      expect((await nodeObject(node)).metadata.annotations).toMatchObject({
        [`${P}/backend-type`]: 'vxlan',
        [`${P}/backend-data`]: expect.stringMatching(/^\{"VNI":1,"VtepMAC":"([\da-f]{2}:){5}[\da-f]{2}"\}$/),
        [`${P}/kube-subnet-manager`]: 'true',
        [`${P}/public-ip`]: node.host.address,
      })
  })

  it('lets pods, Services and DNS work', async () => {
    await cluster.kubectl('-n', 'kube-system', 'rollout', 'status', 'deployment/coredns', '--timeout=5m')
    await everythingTalks()
    for (const pod of await weftPods()) {
      await soon(async () => expect(await weft(pod, 'status')).toMatch(/working/))
      // The nodes have podCIDRs of both families, but weft's network has IPv4 alone.
      expect(await weft(pod, 'status')).not.toMatch(/^ *node .*fd00:/m)
    }
  })
})

const BACKENDS = [
  { backend: { Type: 'vxlan' }, device: 'flannel.1' },
  { backend: { Type: 'udp' }, device: 'flannel0' },
  { backend: { Type: 'wireguard' }, device: 'flannel-wg' },
  { backend: { Type: 'host-gw' }, device: undefined },
] as const

describe.each(BACKENDS)('the backend $backend.Type', { timeout: 10 * MINUTE }, ({ backend, device }) => {
  it('carries pods, Services and DNS after a change of the configuration', async () => {
    const before = await subnets()
    await setBackend(backend)
    expect(await subnets()).toEqual(before)
    await everythingTalks()
    for (const node of cluster.nodes) {
      const devices = (await node.host.output(['ip', '-br', 'link'])).match(/^flannel[\w.-]*/gm) ?? []
      expect(devices).toEqual(device === undefined ? [] : [device])
      const { metadata } = await nodeObject(node)
      expect(metadata.annotations[`${P}/backend-type`]).toBe(backend.Type === 'udp' ? '' : backend.Type)
    }
  })

  it('carries TCP', async () => {
    const pods = await webPods()
    const [a, b] = (await Promise.all(pods.slice(0, 2).map((pod) => cluster.enter(pod)))) as [Pod, Pod]
    const server = await iperfServer((command) => b.spawn(command))
    const { bitsPerSecond } = await server.run(a.namespace, b.address, 3)
    await server.stop()
    report(`${backend.Type}: ${(bitsPerSecond / 1e9).toFixed(2)} Gbit/s between pods of two nodes`)
    expect(bitsPerSecond).toBeGreaterThan(20e6)
  })

  it('loses no packet in an update by surge, and keeps each subnet', async () => {
    const before = await subnets()
    const held = new Set((await weftPods()).map(({ metadata }) => metadata.uid))
    const current = await cluster.kubectl(
      ...'-n kube-flannel get daemonset kube-flannel-ds -o jsonpath={.spec.template.spec.containers[0].image}'.split(
        ' ',
      ),
    )
    const next = current === IMAGE ? NEXT_IMAGE : IMAGE
    const began = performance.now()
    const { sent, lost, errors } = await whilePinging(async () => {
      await cluster.kubectl('-n', 'kube-flannel', 'set', 'image', 'daemonset/kube-flannel-ds', `kube-flannel=${next}`)
      await rollout()
    })
    const tookS = (performance.now() - began) / 1000
    report(`${backend.Type}: ${lost} of ${sent} pings lost in an update of three nodes in ${tookS.toFixed(0)} s`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    expect(sent).toBeGreaterThan(100)
    for (const pod of await weftPods()) {
      expect(held).not.toContain(pod.metadata.uid)
      expect(pod.status.containerStatuses?.[0]?.restartCount).toBe(0)
    }
    expect(await subnets()).toEqual(before)
  })
})

describe('a node', { timeout: 15 * MINUTE }, () => {
  it('gives a pod that is made again another address of its subnet', async () => {
    const [old] = await webPods()
    await cluster.kubectl('delete', 'pod', old!.metadata.name)
    const [made] = await webPods()
    expect(made!.metadata.uid).not.toBe(old!.metadata.uid)
    const { spec } = await nodeObject(cluster.nodes[0])
    expect(made!.status.podIP).toMatch(new RegExp(`^${spec.podCIDR!.replace(/\.0\/24$/, '')}\\.`))
    await everythingTalks()
  })

  it('is drained and boots again with its subnet, while other nodes lose no packet', async () => {
    const [, , last] = cluster.nodes
    const before = await subnets()
    const { lost, errors } = await whilePinging(async () => {
      await cluster.kubectl('drain', last.name, '--ignore-daemonsets', '--delete-emptydir-data', '--timeout=3m')
      await last.powerOff()
      await last.start()
      await cluster.kubectl('uncordon', last.name)
      await soon(async () => {
        const pods = await cluster.pods(...WEFT)
        const here = pods.find(({ spec }) => spec.nodeName === last.name)
        expect(here?.status.containerStatuses?.[0]?.restartCount).toBeGreaterThan(0)
      })
      await weftPods()
    })
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    expect(await subnets()).toEqual(before)
    await soon(everythingTalks)
  })

  it('is removed and added again', async () => {
    const [first, second, last] = cluster.nodes
    const { spec } = await nodeObject(last)
    await last.powerOff()
    await cluster.kubectl('delete', 'node', last.name)
    for (const node of [first, second])
      await soon(async () => expect(await node.host.output(['ip', 'route'])).not.toContain(spec.podCIDR))
    await last.start()
    await nodesAre(cluster, true)
    await weftPods()
    // The API server may still have the object of the pod that ran before the node was switched off.
    await soon(async () => {
      const found = await subnets()
      expect(found[last.name]![0]).toBe(found[last.name]![1])
    })
    await soon(everythingTalks)
  })

  it('that gets its podCIDR late waits for it, and says so', async () => {
    const [, , last] = cluster.nodes
    await cluster.manager.stop()
    await cluster.manager.start(['--controllers=*,-node-ipam-controller', '--allocate-node-cidrs=false'])
    await last.powerOff()
    await cluster.kubectl('delete', 'node', last.name)
    await last.start()
    await soon(async () => {
      const { items } = await cluster.get<{ items: { reason: string; involvedObject: { name: string } }[] }>('events')
      expect(items.filter(({ reason }) => reason === 'NoPodCIDR').map((each) => each.involvedObject.name)).toContain(
        last.name,
      )
    })
    expect((await nodeObject(last)).spec.podCIDR).toBeUndefined()
    await cluster.manager.stop()
    await cluster.manager.start()
    await nodesAre(cluster, true)
    await weftPods()
    await soon(everythingTalks)
  })

  it('forwards while the API server is away', async () => {
    const minutes = Number(process.env['WEFT_CLUSTER_OUTAGE_MINUTES'] ?? 2)
    const before = (await weftPods()).map(({ metadata }) => metadata.uid)
    const { sent, lost, errors } = await whilePinging(async () => {
      await cluster.api.stop()
      await delay(minutes * MINUTE)
      await cluster.api.start()
      await nodesAre(cluster, true)
    })
    report(`API server away for ${minutes} min: ${lost} of ${sent} pings lost`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    const pods = await weftPods()
    expect(pods.map(({ metadata }) => metadata.uid)).toEqual(before)
    await everythingTalks()
  })
})

describe('IPv6', { timeout: 10 * MINUTE }, () => {
  it('is added as docs/kubernetes/add-ipv6.md says without a lost packet, and new pods reach each other', async () => {
    await setBackend({ Type: 'wireguard' })
    const [, , configure, restart] = manualLines('docs/kubernetes/add-ipv6.md', '## Add IPv6')
    const { sent, lost, errors } = await whilePinging(async () => {
      await cluster.sh(configure!, { IPV6_NETWORK: PODS.ipv6 })
      await cluster.sh(restart!)
      await weftPods()
    })
    report(`IPv6 is added: ${lost} of ${sent} pings lost`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    for (const node of cluster.nodes) {
      const { spec, metadata } = await nodeObject(node)
      expect(spec.podCIDRs).toHaveLength(2)
      expect(subnetEnv(node)['FLANNEL_IPV6_SUBNET']?.replace(/::1\/64$/, '::/64')).toBe(spec.podCIDRs![1])
      expect(metadata.annotations[`${P}/public-ipv6`]).toBe(node.host.ipv6)
    }
    await cluster.sh('kubectl delete pod -l app=web')
    const pods = await webPods()
    const places = await Promise.all(pods.map((pod) => cluster.enter(pod)))
    for (const from of places)
      for (const to of places)
        if (from !== to) {
          expect(to.ipv6).toMatch(/^fd00:244:/)
          await reach(from.namespace, to.ipv6!)
          await reach(from.namespace, to.address)
        }
    await everythingTalks()
  })
})

/** The devices of weft and flannel, and the chains of their firewall rules, on a node. */
async function leftOn(node: KubeNode) {
  const devices = (await node.host.output(['ip', '-br', 'link'])).match(/^flannel[\w.-]*/gm) ?? []
  const rules = await node.host.output(['sh', '-c', 'iptables-save; ip6tables-save; nft list tables'])
  const unreachable = await node.host.output([
    'sh',
    '-c',
    'ip route show type unreachable; ip -6 route show type unreachable',
  ])
  return { devices, chains: [...new Set(rules.match(/FLANNEL-\w+|flannel\S*/g))], unreachable }
}

const DEBUG = { 'app.kubernetes.io/managed-by': 'kubectl-debug' }
const CLEANUP = 'weft cleanup -f /host/run/flannel/subnet.env'
/** Runs `weft cleanup` in a pod on a node. kubectl before 1.30 has no profile `sysadmin`, so the test creates the privileged pod itself. */
async function cleanUp({ name }: KubeNode): Promise<void> {
  if (minor >= 30)
    return void (await cluster.sh(`kubectl debug node/$NODE --profile=sysadmin --image=$IMAGE -- ${CLEANUP}`, {
      NODE: name,
      IMAGE,
    }))
  const container = {
    name: 'cleanup',
    image: IMAGE,
    command: CLEANUP.split(' '),
    securityContext: { privileged: true },
    volumeMounts: [{ name: 'host', mountPath: '/host' }],
  }
  await cluster.apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: `cleanup-${name}`, namespace: 'default', labels: DEBUG },
    spec: {
      nodeName: name,
      restartPolicy: 'Never',
      hostNetwork: true,
      hostPID: true,
      containers: [container],
      volumes: [{ name: 'host', hostPath: { path: '/' } }],
    },
  })
}

describe('weft, removed as docs/kubernetes.md says,', { timeout: 10 * MINUTE }, () => {
  it('leaves no device and no rule after weft cleanup', async () => {
    await cluster.sh('kubectl delete -k deploy/kubernetes --timeout=5m')
    for (const node of cluster.nodes) expect((await leftOn(node)).chains).toContain('FLANNEL-POSTRTG')
    for (const node of cluster.nodes) await cleanUp(node)
    await soon(async () => {
      const { items } = await cluster.get<{ items: { status: { phase: string } }[] }>(
        ...'pods -n default -l app.kubernetes.io/managed-by=kubectl-debug'.split(' '),
      )
      expect(items.map(({ status }) => status.phase)).toEqual(['Succeeded', 'Succeeded', 'Succeeded'])
    })
    for (const node of cluster.nodes) expect(await leftOn(node)).toEqual({ devices: [], chains: [], unreachable: '' })
    await cluster.sh('kubectl delete pod -l app.kubernetes.io/managed-by=kubectl-debug')
  })
})

const FROM_FLANNEL = 'docs/kubernetes/from-flannel.md'
const [hold, replace, inspect, release, , back] = manualLines(FROM_FLANNEL, '## From flannel to weft', '## And back')
const images = async (): Promise<readonly (string | undefined)[]> =>
  (await weftPods()).map(({ status }) => status.containerStatuses?.[0]?.image)

describe('a cluster with flannel', { timeout: 20 * MINUTE }, () => {
  it('has flannel by its own manifest', async () => {
    cpSync(join(PROGRAMS, 'flannel-source/Documentation/kube-flannel.yml'), join(cluster.work, 'kube-flannel.yml'))
    // flannel leaves the annotations of IPv6, which it does not use.
    await cluster.sh(`kubectl annotate node --all ${P}/backend-v6-data- ${P}/public-ipv6-`)
    await cluster.sh('kubectl apply -f kube-flannel.yml')
    await rollout()
    expect(await images()).toEqual(Array(3).fill(FLANNEL_IMAGES.flannel))
    await everythingTalks()
  })

  it('moves to weft a node at a time and loses no packet', async () => {
    const before = await subnets()
    const published = await Promise.all(cluster.nodes.map(nodeObject))
    const { lost, errors, sent } = await whilePinging(async () => {
      await cluster.sh(hold!, { IMAGE })
      for (const node of cluster.nodes) {
        await cluster.sh(replace!, { NODE: node.name })
        expect(await cluster.sh(inspect!, { NODE: node.name })).toContain(node.host.address)
        await everythingTalks()
      }
    })
    report(`from flannel to weft: ${lost} of ${sent} pings lost`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    expect(await images()).toEqual(Array(3).fill(IMAGE))
    expect(await subnets()).toEqual(before)
    const now = await Promise.all(cluster.nodes.map(nodeObject))
    expect(now.map(({ metadata }) => metadata.annotations)).toEqual(
      published.map(({ metadata }) => metadata.annotations),
    )
  })

  it('takes the manifest of weft although its selector differs', async () => {
    const { lost, errors } = await whilePinging(async () => {
      await cluster.sh(release!)
      await rollout()
      await expect(cluster.sh('kubectl apply -k deploy/kubernetes')).rejects.toThrow(/field is immutable/)
      const old = (await weftPods()).map(({ metadata }) => metadata.name)
      await cluster.sh('kubectl -n kube-flannel delete daemonset kube-flannel-ds --cascade=orphan')
      await cluster.sh('kubectl apply -k deploy/kubernetes')
      await rollout()
      for (const name of old) await cluster.sh(`kubectl -n kube-flannel delete pod ${name}`)
      await weftPods()
    })
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    await everythingTalks()
  })

  it('moves back to flannel a node at a time', async () => {
    const before = await subnets()
    await cluster.sh('kubectl -n kube-flannel delete daemonset kube-flannel-ds --cascade=orphan')
    await cluster.sh(back!)
    for (const node of cluster.nodes) {
      await cluster.sh(replace!, { NODE: node.name })
      await everythingTalks()
    }
    expect(await images()).toEqual(Array(3).fill(FLANNEL_IMAGES.flannel))
    expect(await subnets()).toEqual(before)
    await cluster.sh('kubectl -n default delete role/flannel-events rolebinding/flannel-events')
    await cluster.sh('kubectl delete -f kube-flannel.yml --timeout=5m')
  })
})

/** Runs shell commands, among them Helm. */
const withHelm = (script: string, env: Readonly<Record<string, string>> = {}): Promise<string> => {
  const home = { HELM_CACHE_HOME: cluster.work, HELM_CONFIG_HOME: cluster.work, HELM_DATA_HOME: cluster.work }
  return cluster.sh(`helm() { "$HELM" "$@"; }\n${script}`, { HELM, ...home, ...env })
}
const helm = (words: string): Promise<string> => withHelm(`helm ${words}`)

describe('weft by its chart', { timeout: 10 * MINUTE }, () => {
  const chart = join(packageRoot, 'deploy/charts/weft')

  it('is installed as docs/kubernetes.md says', async () => {
    await cluster.sh('kubectl create namespace kube-flannel')
    await cluster.sh('kubectl label namespace kube-flannel pod-security.kubernetes.io/enforce=privileged')
    await helm(
      `install flannel ${chart} --namespace kube-flannel --set podCidr=${PODS.ipv4}` +
        ` --set flannel.image.repository=${publisher.image} --set flannel.backend=udp`,
    )
    await rollout()
    await weftPods()
    await everythingTalks()
  })

  it('needs the exceptions from the level baseline that docs/kubernetes.md lists, and no others', async () => {
    const said = await cluster.sh(
      'kubectl label --dry-run=server --overwrite namespace kube-flannel pod-security.kubernetes.io/enforce=baseline 2>&1',
    )
    const [, list = ''] = /kube-flannel-ds-\w+ \(and 2 other pods\): (.*)$/m.exec(said) ?? []
    expect(list.split(', ').toSorted(), said).toEqual([
      'host namespaces',
      'hostPath volumes',
      'non-default capabilities',
    ])
  })

  it('passes `helm test`, which fails while weftd does not reach a node', async () => {
    const test = (): Promise<string> => helm('test flannel --namespace kube-flannel --logs --timeout 5m')
    const said = await test()
    expect(said).toMatch(/^ok: "summary":"subnet .* 2 peers/m)
    expect(said).toMatch(/^ok: weftd is ready at the gateway 10\.244\./m)
    report(said.match(/^ok: .*$/gm)!.join('; '))
    const [, , last] = cluster.nodes
    // The last node sends no datagrams, so every node misses a peer.
    const rule = ['iptables', '-I', 'OUTPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP']
    await last.host.output(rule)
    try {
      for (const pod of await weftPods()) await soon(() => expect(weft(pod, 'status')).rejects.toThrow())
      await expect(test()).rejects.toThrow()
    } finally {
      await last.host.output(rule.with(1, '-D'))
    }
    await soon(test)
  })

  it('is accepted by the API server with each variation of its values', async () => {
    // The API server refuses changes of a pod, so the pods of `helm test` must be new.
    await cluster.sh('kubectl -n kube-flannel delete pod --ignore-not-found flannel-test-node flannel-test-pod')
    for (const { name, values } of CHART_VARIATIONS.filter(({ since = 0 }) => since <= minor)) {
      const file = join(cluster.work, 'values.json')
      writeFileSync(file, JSON.stringify(values))
      // The cluster lacks the kinds of the Prometheus operator.
      const rendered = await helm(`template flannel ${chart} --namespace kube-flannel --values ${file}`)
      const objects = parseAllDocuments(rendered)
        .map((each) => each.toJS() as { readonly apiVersion: string } | null)
        .filter((each) => each !== null && !each.apiVersion.startsWith('monitoring.coreos.com/'))
      writeFileSync(
        join(cluster.work, 'objects.json'),
        JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }),
      )
      const said = await cluster.sh('kubectl apply --dry-run=server --validate=strict -f objects.json')
      expect(said.trim().split('\n'), name).toHaveLength(objects.length)
    }
  })

  it('is upgraded without a lost packet, and uninstalled', async () => {
    const { sent, lost, errors } = await whilePinging(async () => {
      await helm(`upgrade flannel ${chart} --namespace kube-flannel --reuse-values --set flannel.image.tag=next`)
      await rollout()
    })
    report(`helm upgrade: ${lost} of ${sent} pings lost`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    await helm('uninstall flannel --namespace kube-flannel --wait')
    await soon(async () => expect(await cluster.pods(...WEFT)).toEqual([]))
  })
})

describe('a cluster with flannel by its chart', { timeout: 20 * MINUTE }, () => {
  const [upgrade, complete, revert] = manualLines(FROM_FLANNEL, '## Helm')

  it('moves to weft with the values of flannel’s chart, a node at a time, and loses no packet', async () => {
    cpSync(join(packageRoot, 'deploy/charts'), join(cluster.work, 'deploy/charts'), { recursive: true })
    cpSync(join(PROGRAMS, 'flannel-source/chart/kube-flannel'), join(cluster.work, 'flannel'), { recursive: true })
    await cluster.sh('kubectl create namespace kube-flannel --dry-run=client -o yaml | kubectl apply -f -')
    await cluster.sh('kubectl label --overwrite namespace kube-flannel pod-security.kubernetes.io/enforce=privileged')
    await helm(`install flannel ./flannel --namespace kube-flannel --set podCidr=${PODS.ipv4}`)
    await rollout()
    expect(await images()).toEqual(Array(3).fill(FLANNEL_IMAGES.flannel))
    await everythingTalks()
    const before = await subnets()
    const { sent, lost, errors } = await whilePinging(async () => {
      await withHelm(upgrade!, { IMAGE })
      for (const node of cluster.nodes) await cluster.sh(replace!, { NODE: node.name })
      await everythingTalks()
      await withHelm(complete!)
      await rollout()
    })
    report(`from flannel's chart to weft's chart: ${lost} of ${sent} pings lost`)
    expect({ lost, errors }).toEqual(NO_PACKET_LOST)
    expect(await images()).toEqual(Array(3).fill(IMAGE))
    expect(await subnets()).toEqual(before)
    await helm('test flannel --namespace kube-flannel --timeout 5m')
  })

  it('moves back to flannel’s chart', async () => {
    const before = await subnets()
    await withHelm(revert!, { REVISION: '1' })
    for (const node of cluster.nodes) {
      await cluster.sh(replace!, { NODE: node.name })
      await everythingTalks()
    }
    expect(await images()).toEqual(Array(3).fill(FLANNEL_IMAGES.flannel))
    expect(await subnets()).toEqual(before)
    await helm('uninstall flannel --namespace kube-flannel --wait')
  })
})
