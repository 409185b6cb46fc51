// manifests.test.ts - the manifest, the chart, what they ask of a cluster, and what of a host.

import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { parse, parseAllDocuments, stringify } from 'yaml'
import { packageRoot } from '../../lab/lab.ts'
import { parseNetworkConfig } from '../../src/config/network-config.ts'
import { parseFlags } from '../../src/go-flags.ts'
import { checkOptions, FLAGS, refuseNotYet } from '../../src/options.ts'
import { ADMIN_TOKEN, kubeconfigText } from '../support/kube-admin.ts'
import { startKubeApiserver, type RealKubeApi } from '../support/kube-apiserver.ts'
import { manifestObjects, rightsOf, type KubeObject } from '../support/kube-manifest.ts'
import { RIGHTS } from '../support/kube-server.ts'
import { HELM, KUBE_APISERVER, lackOf, needs } from '../support/needs.ts'

const deploy = join(packageRoot, 'deploy')
const read = (path: string): string => readFileSync(join(deploy, path), 'utf8')

interface Container {
  readonly name: string
  readonly image: string
  readonly args?: readonly string[]
  readonly securityContext: Readonly<Record<string, unknown>>
  readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string }[]
}
interface PodSpec {
  readonly hostNetwork: boolean
  readonly securityContext: unknown
  readonly initContainers: readonly Container[]
  readonly containers: readonly [Container]
  readonly volumes: readonly { readonly name: string; readonly hostPath?: { readonly path: string } }[]
}
const find = (objects: readonly KubeObject[], kind: string): KubeObject => objects.find((each) => each.kind === kind)!
const podOf = (objects: readonly KubeObject[]): PodSpec =>
  (find(objects, 'DaemonSet') as unknown as { spec: { template: { spec: PodSpec } } }).spec.template.spec
const dataOf = (objects: readonly KubeObject[]) =>
  (find(objects, 'ConfigMap') as unknown as { data: { 'net-conf.json': string; 'cni-conf.json': string } }).data

/** What holds for the manifest and for the chart with whichever values. */
function holds(objects: readonly KubeObject[], isClosed = true): void {
  // Of rights: what weftd asks for with NODE_NAME, which is all but the question for its own pod.
  expect(rightsOf(objects)).toEqual(RIGHTS.filter((right) => right !== 'get pods').toSorted())
  const pod = podOf(objects)
  expect([pod.hostNetwork, pod.securityContext]).toEqual([true, { seccompProfile: { type: 'RuntimeDefault' } }])
  for (const { securityContext, name } of [...pod.initContainers, ...pod.containers]) {
    expect(securityContext, name).toMatchObject({ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true })
    expect(securityContext['privileged'] ?? false, name).toBe(false)
    expect(securityContext['capabilities'], name).toMatchObject({ drop: ['ALL'] })
  }
  const volumes = new Set(pod.volumes.map(({ name }) => name))
  for (const { volumeMounts } of [...pod.initContainers, ...pod.containers])
    for (const { name } of volumeMounts) expect(volumes).toContain(name)
  const { options } = parseFlags(FLAGS, pod.containers[0].args ?? [])
  refuseNotYet(options)
  checkOptions(options)
  expect(options['kube-subnet-mgr']).toBe(true)
  if (isClosed) expect(options['status-ip']).toBe('127.0.0.1')
  // What it writes beside the root file system, which it cannot.
  const mounts = pod.containers[0].volumeMounts.map(({ mountPath }) => mountPath)
  for (const path of [options['subnet-file'], options['status-socket']]) expect(mounts).toContain(dirname(path))
  const data = dataOf(objects)
  parseNetworkConfig(data['net-conf.json'], { areGiven: true })
  const conf = JSON.parse(data['cni-conf.json']) as { plugins: { type: string }[] }
  expect(conf.plugins.map(({ type }) => type)).toEqual(['flannel', 'portmap'])
}

describe('deploy/kubernetes/weft.yaml', () => {
  const objects = manifestObjects()
  it('asks for the rights that weftd uses and for no power beyond NET_ADMIN', () => {
    holds(objects)
    expect(podOf(objects).containers[0].securityContext['capabilities']).toEqual({ drop: ['ALL'], add: ['NET_ADMIN'] })
  })
  it("has flannel's names, so that it takes the place of flannel's objects", () => {
    const names = objects.map(({ kind, metadata: { name, namespace } }) => `${kind} ${namespace ?? ''}/${name}`)
    expect(names).toEqual([
      ...['Namespace /kube-flannel', 'ServiceAccount kube-flannel/flannel', 'ClusterRole /flannel'],
      ...['ClusterRoleBinding /flannel', 'Role default/flannel-events', 'RoleBinding default/flannel-events'],
      ...['ConfigMap kube-flannel/kube-flannel-cfg', 'DaemonSet kube-flannel/kube-flannel-ds'],
    ])
  })
  it('is all that the kustomization has, whose image is one of it', () => {
    const { resources, images } = parse(read('kubernetes/kustomization.yaml')) as {
      resources: string[]
      images: { name: string; newName: string; newTag: string }[]
    }
    expect(resources).toEqual(['weft.yaml'])
    const used = podOf(objects).containers[0].image
    expect(images.map(({ name, newTag }) => `${name}:${newTag}`)).toEqual([used])
    const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
    expect(used).toBe(`weft:${version}`)
  })
})

type Values = Readonly<Record<string, unknown>>
const chart = join(deploy, 'charts/weft')
const defaults = parse(read('charts/weft/values.yaml')) as Values & { readonly flannel: Values }
const templates = readdirSync(join(chart, 'templates')).map((name) => read(`charts/weft/templates/${name}`))

it('deploy/charts/weft has no value that no template reads', () => {
  for (const name of Object.keys(defaults.flannel))
    expect(templates.join('\n'), name).toMatch(new RegExp(String.raw`flannel\.${name}\b`))
})

function helm(args: readonly string[], env: Readonly<Record<string, string>> = {}): string {
  const ran = spawnSync(process.env['WEFT_HELM']!, args, { encoding: 'utf8', env: { ...process.env, ...env } })
  if (ran.status !== 0) throw new Error(ran.stderr)
  return ran.stdout
}

describe('deploy/charts/weft', () => {
  needs(HELM)
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-chart-'))
  })
  afterEach(() => rmSync(folder, { recursive: true }))

  /** With these values above the chart's own; null takes one away, as if it had never been there. */
  function render(values: Values = {}): KubeObject[] {
    const file = join(folder, 'values.json')
    writeFileSync(file, JSON.stringify(values))
    const rendered = helm(['template', 'flannel', chart, '--namespace', 'kube-flannel', '--values', file])
    return parseAllDocuments(rendered).map((document) => {
      expect(document.errors).toEqual([])
      return document.toJS() as KubeObject
    })
  }
  /** By kind and name; the label by which flannel's manifest tells its pods, and the chart not, left out. */
  const byName = (objects: readonly KubeObject[]): Record<string, unknown> =>
    Object.fromEntries(
      objects.map((each) => {
        const plain = JSON.parse(
          JSON.stringify(each)
            .replaceAll(/,?"k8s-app":"flannel"/g, '')
            .replaceAll('{,', '{'),
        ) as KubeObject
        const data =
          each.kind === 'ConfigMap'
            ? { data: Object.entries(dataOf([each])).map(([name, text]) => [name, JSON.parse(text)]) }
            : {}
        return [`${each.kind} ${each.metadata.name}`, { ...plain, ...data }]
      }),
    )

  it('is the manifest, with its default values', () => {
    // As flannel's, it leaves the namespace to whoever installs it.
    const { 'Namespace kube-flannel': _, ...manifest } = byName(manifestObjects())
    expect(byName(render())).toEqual(manifest)
  })

  it("takes the values of a release of flannel's chart, which know nothing of ours", () => {
    // As of its chart v0.28.9, with what its comments offer.
    const flannel = {
      ...{ backend: 'vxlan', backendPort: 4789, vni: 42, mtu: 1400, directRouting: true, GBP: true },
      nodeSelector: { role: 'worker' },
      tolerations: [],
      skipCNIConfigInstallation: true,
      enableNFTables: true,
      cniBinDir: '/usr/libexec/cni',
      args: ['--ip-masq', '--kube-subnet-mgr', '--iface=eth1'],
      healthz: { port: 0 },
    }
    const global = { imagePullSecrets: [{ name: 'secret' }] }
    const objects = render({ global, flannel, podCidr: '10.9.0.0/16', weft: null, netpol: null })
    holds(objects)
    expect(JSON.parse(dataOf(objects)['net-conf.json'])).toEqual({
      ...{ Network: '10.9.0.0/16', EnableNFTables: true },
      Backend: { Type: 'vxlan', Port: 4789, VNI: 42, MTU: 1400, DirectRouting: true, GBP: true },
    })
    const pod = podOf(objects)
    expect(pod.initContainers.map(({ name }) => name)).toEqual(['install-cni-plugin'])
    expect(pod.containers[0].args).toEqual(['--ip-masq', '--kube-subnet-mgr', '--iface=eth1'])
    expect(pod).toMatchObject({ nodeSelector: { role: 'worker' }, imagePullSecrets: [{ name: 'secret' }] })
    expect(pod).not.toHaveProperty('tolerations')
    expect(pod.containers[0]).not.toHaveProperty('livenessProbe')
    expect(pod.volumes.find(({ name }) => name === 'cni-plugin')?.hostPath?.path).toBe('/usr/libexec/cni')
  })

  it('writes the other backends, and what is weft’s own', () => {
    const backendOf = (flannel: Values, weft: Values = {}): unknown => {
      const objects = render({ weft, flannel })
      holds(objects)
      return (JSON.parse(dataOf(objects)['net-conf.json']) as { Backend: unknown }).Backend
    }
    expect(backendOf({ backend: 'udp', backendPort: 9000 }, { backend: { VerifySource: 'inner' } })).toEqual({
      ...{ Type: 'udp', Port: 9000, VerifySource: 'inner' },
    })
    expect(
      backendOf({ backend: 'wireguard', backendPort: 51821, psk: '0"', keepaliveInterval: 25, tunnelMode: 'separate' }),
    ).toEqual({
      ...{ Type: 'wireguard', ListenPort: 51821, PSK: '0"', PersistentKeepaliveInterval: 25, Mode: 'separate' },
    })
    expect(backendOf({ backend: 'host-gw' })).toEqual({ Type: 'host-gw' })
    const open = render({ weft: { statusIp: '0.0.0.0' } })
    holds(open, false)
    expect(podOf(open).containers[0].args).toContain('--status-ip=0.0.0.0')
    const legacy = render({ weft: { legacyIptables: true } })
    expect(podOf(legacy).containers[0].securityContext['capabilities']).toEqual({
      drop: ['ALL'],
      add: ['NET_ADMIN', 'NET_RAW'],
    })
    expect(() => render({ netpol: { enabled: true } })).toThrow('netpol is not part of weft')
    expect(() => render({ podCidrv6: 'fd00::/56' })).toThrow('weft has no IPv6 yet')
    expect(() => render({ podCidr: '' })).toThrow('set podCidr')
  })
})

describe('a real API server', () => {
  const lacks = needs(KUBE_APISERVER, 'openssl', 'etcd', 'etcdctl')
  let api: RealKubeApi | undefined
  beforeEach(async () => {
    if (lacks === undefined) api = await startKubeApiserver()
  })
  afterEach(() => api?.close())

  it('takes each object of the manifest', async () => {
    for (const object of manifestObjects()) {
      const { status, body } = await api!.admin.create(object)
      expect([object.kind, status, body]).toEqual([object.kind, 201, expect.objectContaining({ kind: object.kind })])
    }
  })

  it("turns a release of flannel's chart into weft's by --reuse-values, and back", async ({ skip }) => {
    const lacksHelm = lackOf(HELM)
    skip(lacksHelm !== undefined, lacksHelm)
    const folder = mkdtempSync(join(tmpdir(), 'weft-chart-'))
    const kubeconfig = join(folder, 'kubeconfig')
    writeFileSync(kubeconfig, kubeconfigText(api!.url, api!.caFile, ADMIN_TOKEN))
    const run = (...args: string[]): string =>
      helm([...args, '--namespace', 'kube-flannel'], { KUBECONFIG: kubeconfig, HELM_CACHE_HOME: folder })
    const daemonSet = async () => {
      const path = '/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds'
      return (await api!.admin.call('GET', path)).body as KubeObject
    }
    // What flannel's chart is to Helm: its name, its objects' names, its values, none of ours.
    const flannels = join(folder, 'flannel')
    cpSync(chart, flannels, { recursive: true })
    const { weft: _, ...values } = defaults
    const image = { repository: 'ghcr.io/flannel-io/flannel', tag: 'v0.28.9' }
    writeFileSync(join(flannels, 'values.yaml'), stringify({ ...values, flannel: { ...defaults.flannel, image } }))
    await api!.admin.create(manifestObjects()[0]!)
    run('install', 'flannel', flannels, '--set', 'podCidr=10.9.0.0/16', '--set', 'flannel.backend=host-gw')
    expect(podOf([await daemonSet()]).containers[0].image).toBe('ghcr.io/flannel-io/flannel:v0.28.9')
    const ours = ['flannel.image.repository=registry.example/weft', 'flannel.image.tag=0.1.0']
    run('upgrade', 'flannel', chart, '--reuse-values', ...ours.flatMap((each) => ['--set', each]))
    expect(podOf([await daemonSet()]).containers[0].image).toBe('registry.example/weft:0.1.0')
    const map = await api!.admin.call('GET', '/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg')
    expect(JSON.parse(dataOf([map.body as KubeObject])['net-conf.json'])).toEqual({
      ...{ Network: '10.9.0.0/16', Backend: { Type: 'host-gw' } },
    })
    run('rollback', 'flannel')
    expect(podOf([await daemonSet()]).containers[0].image).toBe('ghcr.io/flannel-io/flannel:v0.28.9')
    rmSync(folder, { recursive: true })
  })
})
