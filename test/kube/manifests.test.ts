// manifests.test.ts - the manifest and the chart: their objects, and what they require of a cluster and of a host.

import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { parse, parseAllDocuments, stringify } from 'yaml'
import { execute } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { applyEnvironment, parseFlags } from '../../src/base/go-flags.ts'
import { configSchema } from '../../src/control/config/keys.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { checkOptions, FLAGS } from '../../src/options.ts'
import { KINDS } from '../../src/path/catalog.ts'
import { ADMIN_TOKEN, kubeconfigText } from '../support/kube-admin.ts'
import { startKubeApiserver, type RealKubeApi } from '../support/kube-apiserver.ts'
import { manifestObjects, rightsOf, type KubeObject } from '../support/kube-manifest.ts'
import { RIGHTS } from '../support/kube-server.ts'
import { HELM, KUBE_APISERVER, lackOf, needs } from '../support/needs.ts'

const deploy = join(packageRoot, 'deploy')
/** The value of --status-socket in the image. */
const imageSocket =
  /^ENV FLANNELD_STATUS_SOCKET=(.*)$/m.exec(readFileSync(join(deploy, 'Dockerfile'), 'utf8'))?.[1] ?? ''
const read = (path: string): string => readFileSync(join(deploy, path), 'utf8')

interface Container {
  readonly name: string
  readonly image: string
  readonly args?: readonly string[]
  readonly securityContext: Readonly<Record<string, unknown>>
  readonly env?: readonly { readonly name: string; readonly value?: string }[]
  readonly startupProbe?: { readonly exec: { readonly command: readonly string[] }; readonly timeoutSeconds: number }
  readonly livenessProbe?: { readonly httpGet: { readonly path: string } }
  readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string }[]
}
interface PodSpec {
  readonly hostNetwork: boolean
  readonly securityContext: unknown
  readonly initContainers: readonly Container[]
  readonly containers: readonly [Container]
  readonly volumes: readonly { readonly name: string; readonly hostPath?: { readonly path: string } }[]
  readonly affinity?: unknown
}
const find = (objects: readonly KubeObject[], kind: string): KubeObject => objects.find((each) => each.kind === kind)!
const podOf = (objects: readonly KubeObject[]): PodSpec =>
  (find(objects, 'DaemonSet') as unknown as { spec: { template: { spec: PodSpec } } }).spec.template.spec
const updateOf = (
  objects: readonly KubeObject[],
): { readonly updateStrategy?: unknown; readonly minReadySeconds?: number } =>
  (find(objects, 'DaemonSet') as unknown as { spec: object }).spec
const SURGE = { type: 'RollingUpdate', rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } }

/** The variables that the image sets for its programs. */
const imageEnv = Object.fromEntries(
  [...read('Dockerfile').matchAll(/^ENV (\w+)=(\S+)$/gm)].map(([, name = '', value = '']) => [name, value]),
)
const dataOf = (objects: readonly KubeObject[]) =>
  (find(objects, 'ConfigMap') as unknown as { data: { 'net-conf.json': string; 'cni-conf.json': string } }).data

/** Checks what must hold for the manifest, and for the chart with any values. */
function holds(objects: readonly KubeObject[], isClosed = true): void {
  // The rights that weftd uses with NODE_NAME: all except reading its own pod.
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
  const [daemon] = pod.containers
  const given = Object.fromEntries(
    (daemon.env ?? []).flatMap(({ name, value }) => (value === undefined ? [] : [[name, value]])),
  )
  const options = applyEnvironment(
    FLAGS,
    parseFlags(FLAGS, daemon.args ?? []),
    'FLANNELD',
    { ...imageEnv, ...given },
    (bad) => expect.fail(bad),
  )
  checkOptions(options)
  // Two pods run on a node during an update. So they must not declare a host port, and probes of the pod's own weftd precede those of the
  // port.
  expect(daemon).not.toHaveProperty('ports')
  expect(daemon.startupProbe?.exec.command).toEqual(['weft', 'ready', '--wait=50'])
  expect(daemon.startupProbe?.timeoutSeconds).toBeGreaterThan(50)
  const ownFolder = daemon.volumeMounts.find(({ mountPath }) => mountPath === dirname(options['status-socket']))
  expect(pod.volumes.find(({ name }) => name === ownFolder?.name)).toHaveProperty('emptyDir')
  const shared = daemon.volumeMounts.find(({ mountPath }) => mountPath === dirname(options['subnet-file']))
  expect(pod.volumes.find(({ name }) => name === shared?.name)).toHaveProperty('hostPath')
  expect(options['kube-subnet-mgr']).toBe(true)
  // A node without one of its families or without its store must not lose the rest because of a restart. /livez fails only for a hanging
  // thread (unit/report/states.test.ts).
  expect(pod.containers[0].livenessProbe?.httpGet.path ?? '/livez').toBe('/livez')
  if (isClosed) expect(options['status-ip']).toBe('127.0.0.1')
  // Paths that it writes outside of the read-only root file system.
  const mounts = pod.containers[0].volumeMounts.map(({ mountPath }) => mountPath)
  for (const path of [options['subnet-file'], imageSocket]) expect(mounts).toContain(dirname(path))
  const data = dataOf(objects)
  parseNetworkConfig(data['net-conf.json'], { areGiven: true })
  const conf = JSON.parse(data['cni-conf.json']) as { plugins: { type: string }[] }
  expect(conf.plugins.map(({ type }) => type)).toEqual(['flannel', 'portmap'])
}

describe('deploy/kubernetes/weft.yaml', () => {
  const objects = manifestObjects()
  it('makes a new pod take over before the old one is ended', () => {
    expect(updateOf(objects)).toMatchObject({ updateStrategy: SURGE, minReadySeconds: 10 })
  })
  it('asks for the rights that weftd uses, and for no capability except NET_ADMIN', () => {
    holds(objects)
    expect(podOf(objects).containers[0].securityContext['capabilities']).toEqual({ drop: ['ALL'], add: ['NET_ADMIN'] })
  })
  it('can copy into a folder of another user, as kubespray has it, which root without that capability cannot', async ({
    skip,
  }) => {
    skip(process.getuid?.() !== 0, 'only root gives powers away')
    const { capabilities } = podOf(objects).initContainers[0]!.securityContext as { capabilities: { add: string[] } }
    const place = mkdtempSync(join(tmpdir(), 'weft-cni-'))
    try {
      chownSync(place, 1000, 1000)
      chmodSync(place, 0o755)
      const copy = async (added: readonly string[]): Promise<number | null> => {
        const bounding = ['-all', ...added.map((each) => `+${each.toLowerCase()}`)].join(',')
        const words = [
          '--bounding-set',
          bounding,
          '--inh-caps',
          '-all',
          'cp',
          '-f',
          '/bin/true',
          join(place, 'flannel'),
        ]
        return (await execute(['setpriv', ...words])).code
      }
      expect(capabilities.add).toEqual(['DAC_OVERRIDE'])
      expect(await copy([])).toBe(1)
      expect(await copy(capabilities.add)).toBe(0)
    } finally {
      rmSync(place, { recursive: true })
    }
  })
  it("has flannel's names, so that it takes the place of flannel's objects", () => {
    const names = objects.map(({ kind, metadata: { name, namespace } }) => `${kind} ${namespace ?? ''}/${name}`)
    expect(names).toEqual([
      'Namespace /kube-flannel',
      'ServiceAccount kube-flannel/flannel',
      'ClusterRole /flannel',
      'ClusterRoleBinding /flannel',
      'Role default/flannel-events',
      'RoleBinding default/flannel-events',
      'ConfigMap kube-flannel/kube-flannel-cfg',
      'DaemonSet kube-flannel/kube-flannel-ds',
    ])
  })
  it('is the only resource of the kustomization, which names its image', () => {
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
const defaults = parse(read('charts/weft/values.yaml')) as Values & {
  readonly flannel: Values & { readonly healthz: { readonly livenessProbe: object } }
  readonly weft: Values
}
const templates = readdirSync(join(chart, 'templates'))
  .filter((name) => name !== 'tests')
  .map((name) => read(`charts/weft/templates/${name}`))

it.each(['flannel', 'weft'] as const)(
  'deploy/charts/weft has no value of %s that is unused in the templates',
  (group) => {
    for (const name of Object.keys(defaults[group]))
      expect(templates.join('\n'), name).toMatch(new RegExp(String.raw`${group}\.${name}\b`))
  },
)

it('deploy/charts/weft has a schema of all its values, whose keywords equal those of the code', () => {
  interface Schema {
    readonly properties?: Readonly<Record<string, Schema>>
    readonly additionalProperties?: unknown
    readonly enum?: readonly string[]
  }
  const schema = JSON.parse(read('charts/weft/values.schema.json')) as Schema
  const has = (values: Values, { properties = {}, additionalProperties }: Schema, path: string): void => {
    for (const [name, value] of Object.entries(values)) {
      const at = `${path}.${name}`
      const below = properties[name]
      if (additionalProperties === false) expect(below, at).toBeDefined()
      if (below && typeof value === 'object' && value !== null) has(value as Values, below, at)
    }
  }
  has(defaults, schema, '')
  const { flannel, weft } = schema.properties!
  const text = templates.join('\n')
  // values.yaml has these values only as comments.
  for (const [, name] of text.matchAll(/\$flannel\.(\w+)/g)) expect(Object.keys(flannel!.properties!)).toContain(name)
  for (const [, name] of text.matchAll(/\$weft\.(\w+)/g)) expect(Object.keys(weft!.properties!)).toContain(name)
  expect(flannel!.properties!['backend']!.enum).toEqual(Object.keys(KINDS))
  const options = (configSchema() as { properties: { Backend: { allOf: { then: Schema }[] } } }).properties.Backend
    .allOf
  const names = new Set(options.flatMap(({ then }) => Object.keys(then.properties!)))
  expect(Object.keys(weft!.properties!['backend']!.properties!).toSorted()).toEqual([...names].toSorted())
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

  /** Renders the chart with these values on top of its own; null removes a value. `only` names a template. */
  function render(values: Values = {}, only?: string): KubeObject[] {
    const file = join(folder, 'values.json')
    writeFileSync(file, JSON.stringify(values))
    const part = only === undefined ? ['--skip-tests'] : ['--show-only', only]
    const rendered = helm(['template', 'flannel', chart, '--namespace', 'kube-flannel', '--values', file, ...part])
    return parseAllDocuments(rendered).map((document) => {
      expect(document.errors).toEqual([])
      return document.toJS() as KubeObject
    })
  }
  /** Returns the objects by kind and name, without the labels and annotations that only the manifest or only the chart has. */
  const byName = (objects: readonly KubeObject[]): Record<string, unknown> =>
    Object.fromEntries(
      objects.map((each) => {
        const plain = JSON.parse(
          JSON.stringify(each)
            .replaceAll(/,?"k8s-app":"flannel"/g, '')
            .replaceAll(/,?"(app\.kubernetes\.io\/[\w-]+|helm\.sh\/chart|checksum\/net-conf)":"[^"]*"/g, '')
            .replaceAll('{,', '{')
            .replaceAll(/,?"(labels|annotations)":\{\}/g, ''),
        ) as KubeObject
        const data =
          each.kind === 'ConfigMap'
            ? { data: Object.entries(dataOf([each])).map(([name, text]) => [name, JSON.parse(text)]) }
            : {}
        return [`${each.kind} ${each.metadata.name}`, { ...plain, ...data }]
      }),
    )

  it('equals the manifest with its default values', () => {
    // Like flannel's chart, it does not create the namespace.
    const { 'Namespace kube-flannel': _, ...manifest } = byName(manifestObjects())
    expect(byName(render())).toEqual(manifest)
  })

  it("accepts the values of a release of flannel's chart, which lacks weft's own values", () => {
    // The values of flannel's chart v0.28.9, with those that its comments offer.
    const flannel = {
      backend: 'vxlan',
      backendPort: 4789,
      vni: 42,
      mtu: 1400,
      directRouting: true,
      GBP: true,
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
      Network: '10.9.0.0/16',
      EnableNFTables: true,
      Backend: { Type: 'vxlan', Port: 4789, VNI: 42, MTU: 1400, DirectRouting: true, GBP: true },
    })
    const pod = podOf(objects)
    expect(pod.initContainers.map(({ name }) => name)).toEqual(['install-cni-plugin'])
    expect(pod.containers[0].args).toEqual(['--ip-masq', '--kube-subnet-mgr', '--iface=eth1'])
    expect(pod).toMatchObject({ nodeSelector: { role: 'worker' }, imagePullSecrets: [{ name: 'secret' }] })
    expect(pod).not.toHaveProperty('tolerations')
    expect(pod.containers[0]).not.toHaveProperty('livenessProbe')
    // A DaemonSet whose pods changed on request keeps doing so, and no weftd starts next to a flanneld.
    expect(updateOf(objects)).not.toHaveProperty('updateStrategy')
    expect(updateOf(objects)).not.toHaveProperty('minReadySeconds')
    expect(pod).toMatchObject({
      priorityClassName: 'system-node-critical',
      affinity: podOf(manifestObjects()).affinity,
    })
    expect(pod.volumes.find(({ name }) => name === 'cni-plugin')?.hostPath?.path).toBe('/usr/libexec/cni')
  })

  it("accepts the values of an old release of flannel's chart, and adds the values that its templates contained", () => {
    // `helm upgrade --reuse-values` ignores the defaults of weft's chart. Here null removes a default.
    const [absent, image] = [null, { repository: 'r/cni', tag: 'v1.1.2' }]
    const lacks = { flannel_cni: absent, cniBinDir: absent, cniConfDir: absent, cniConf: absent, healthz: absent }
    const flannel = { ...lacks, skipCNIConfigInstallation: absent, resources: absent, tolerations: absent }
    const objects = render({ flannel: { ...flannel, image_cni: image }, weft: null, netpol: null, global: null })
    holds(objects)
    const [pod, expected] = [podOf(objects), podOf(manifestObjects())]
    expect(pod.initContainers[0]!.image).toBe('r/cni:v1.1.2')
    expect(pod).toHaveProperty('tolerations', (expected as unknown as { tolerations: unknown }).tolerations)
    expect(pod.containers[0]).toHaveProperty('resources', (expected.containers[0] as { resources?: unknown }).resources)
    expect(pod.volumes).toEqual(expected.volumes)
    expect(JSON.parse(dataOf(objects)['cni-conf.json'])).toEqual(JSON.parse(dataOf(manifestObjects())['cni-conf.json']))
    // In flannel's chart v0.25.5 the default of enableNFTables has an extra comma.
    expect(dataOf(render({ flannel: { enableNFTables: 'false,' } }))['net-conf.json']).not.toContain('NFTables')
    const own = { tolerations: [], cniBinDir: '/opt/own', resources: { requests: { cpu: '1' } } }
    const kept = podOf(render({ flannel: { ...flannel, ...own, image_cni: image } }))
    expect(kept).not.toHaveProperty('tolerations')
    expect(kept.containers[0]).toMatchObject({ resources: own.resources })
    expect(kept.volumes.find(({ name }) => name === 'cni-plugin')?.hostPath?.path).toBe('/opt/own')
  })

  it('writes the other backends, and weft’s own options', () => {
    const backendOf = (flannel: Values, weft: Values = {}): unknown => {
      const objects = render({ weft, flannel })
      holds(objects)
      return (JSON.parse(dataOf(objects)['net-conf.json']) as { Backend: unknown }).Backend
    }
    expect(backendOf({ backend: 'udp', backendPort: 9000 }, { backend: { VerifySource: 'inner' } })).toEqual({
      Type: 'udp',
      Port: 9000,
      VerifySource: 'inner',
    })
    expect(
      backendOf({ backend: 'wireguard', backendPort: 51821, keepaliveInterval: 25, tunnelMode: 'separate' }),
    ).toEqual({
      Type: 'wireguard',
      ListenPort: 51821,
      PersistentKeepaliveInterval: 25,
      Mode: 'separate',
    })
    // flannel's chart accepts this value only with quotes.
    expect(backendOf({ backend: 'wireguard', tunnelMode: '"auto"' })).toEqual({ Type: 'wireguard', Mode: 'auto' })
    expect(backendOf({ backend: 'host-gw' })).toEqual({ Type: 'host-gw' })
    const open = render({ weft: { statusIp: '0.0.0.0' } })
    holds(open, false)
    expect(podOf(open).containers[0].args).toContain('--status-ip=0.0.0.0')
    expect(JSON.stringify(render({}))).not.toMatch(/status-network|status-token|weft-token/)
    const telling = render({ weft: { network: { port: 8287 } } })
    holds(telling)
    expect(podOf(telling).containers[0].args).toContain('--status-network=8287')
    expect(JSON.stringify(telling)).not.toMatch(/status-token|weft-token/)
    const guarded = render({ weft: { network: { port: 8287, tokenSecret: 'weft-nodes' } } })
    expect(podOf(guarded).containers[0].args).toContain('--status-token-file=/run/weft-token/token')
    expect(JSON.stringify(guarded)).toContain('"secretName":"weft-nodes"')
    expect(JSON.stringify(render({ weft: { network: { tokenSecret: 'weft-nodes' } } }))).not.toMatch(/weft-nodes/)
    for (const [weft, more] of [
      [{ legacyIptables: true }, ['NET_RAW']],
      [{ fastPath: true }, ['BPF', 'PERFMON']],
      [{ fastPath: true, legacyIptables: true }, ['NET_RAW', 'BPF', 'PERFMON']],
    ] as const)
      expect(podOf(render({ weft })).containers[0].securityContext['capabilities']).toEqual({
        drop: ['ALL'],
        add: ['NET_ADMIN', ...more],
      })
  })

  it.each([
    [{ flannel: { backned: 'udp' } }, "'backned' not allowed"],
    [{ flannel: { backend: 'vxlna' } }, "at '/flannel/backend'"],
    [{ flannel: { backendPort: 70_000 } }, "at '/flannel/backendPort'"],
    [{ podCIDR: '10.9.0.0/16' }, "'podCIDR' not allowed"],
    [{ weft: { statusIP: '0.0.0.0' } }, "'statusIP' not allowed"],
    [{ weft: { backend: { VerifySuorce: 'off' } } }, "'VerifySuorce' not allowed"],
    [{ weft: { monitoring: { enabled: true } } }, 'weft.monitoring needs weft.statusIp'],
    // Kubernetes accepts only strings here, and would refuse the rendered object.
    [{ flannel: { podAnnotations: { 'prometheus.io/scrape': true } } }, 'got boolean, want string'],
    [{ flannel: { nodeSelector: { gpu: 1 } } }, 'got number, want string'],
    [{ flannel: { tolerations: [{ key: 'edge', value: true }] } }, "at '/flannel/tolerations/0/value'"],
    [{ weft: { env: [{ name: 'FLANNELD_V', value: 1 }] } }, "at '/weft/env/0/value'"],
  ])('refuses %j', (values, says) => expect(() => render(values)).toThrow(says))

  it('has scraping and alerts for the Prometheus operator that equal deploy/prometheus', () => {
    expect(render().map(({ kind }) => kind)).not.toContain('PodMonitor')
    const labels = { release: 'prometheus' }
    const monitoring = { enabled: true, labels }
    const specOf = (values: Values, kind: string) => {
      const { metadata, spec } = find(render(values), kind) as KubeObject & { spec: unknown }
      expect(metadata).toMatchObject({ namespace: 'kube-flannel', labels })
      return spec
    }
    const theirs = (file: string): unknown => (parse(read(`prometheus/${file}`)) as { spec: unknown }).spec
    const weft = { statusIp: '0.0.0.0', monitoring }
    expect(specOf({ weft }, 'PodMonitor')).toEqual(theirs('podmonitor.yml'))
    expect(specOf({ weft }, 'PrometheusRule')).toEqual(theirs('prometheusrule.yml'))
    const runbooks = 'https://wiki.example/weft/'
    const led = specOf({ weft: { ...weft, monitoring: { ...monitoring, runbooks } } }, 'PrometheusRule')
    expect(JSON.stringify(led)).toContain('"https://wiki.example/weft/docs/findings-host.md#daemon-silent"')
    expect(JSON.stringify(led)).not.toContain('"docs/')
  })

  it('sets the annotations, resources, placement and probes of its pods from the values', () => {
    const affinity = { nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [] } }
    const objects = render({
      flannel: { podAnnotations: { 'example.com/a': 'b: "c"' }, resources: { limits: { memory: '1Gi' } } },
      weft: {
        env: [{ name: 'FLANNELD_V', value: '1' }],
        affinity,
        priorityClassName: 'mine',
        minReadySeconds: 60,
        updateStrategy: { type: 'OnDelete', rollingUpdate: null },
      },
    })
    holds(objects)
    const { template } = (find(objects, 'DaemonSet') as unknown as { spec: { template: { metadata: object } } }).spec
    expect(template.metadata).toMatchObject({ annotations: { 'example.com/a': 'b: "c"' } })
    expect(updateOf(objects)).toMatchObject({ updateStrategy: { type: 'OnDelete' }, minReadySeconds: 60 })
    const pod = podOf(objects)
    expect(pod).toMatchObject({ affinity, priorityClassName: 'mine' })
    expect(pod.containers[0].env).toContainEqual({ name: 'FLANNELD_V', value: '1' })
    expect(pod.containers[0]).toMatchObject({ resources: { limits: { memory: '1Gi' } } })
    expect(updateOf(render({ weft: { updateStrategy: { rollingUpdate: null } } }))).toMatchObject({
      updateStrategy: { type: 'RollingUpdate' },
    })
    // The values replace the whole probe except its path.
    const livenessProbe = { 'timeout: Seconds': 3, httpGet: { path: '/' } }
    const [probed] = podOf(render({ flannel: { healthz: { port: 8081, livenessProbe } } })).containers
    expect(probed.livenessProbe).toEqual({
      ...defaults.flannel.healthz.livenessProbe,
      'timeout: Seconds': 3,
      httpGet: { path: '/livez', port: 8081 },
    })
    // Without a port the probes use the pod's own weftd.
    holds(render({ flannel: { healthz: { port: 0 } } }))
  })

  it('has the labels that Kubernetes recommends on every object, and selects no pod with them', () => {
    const objects = render({ netpol: { enabled: true }, flannel: { backend: 'wireguard', psk: 'a' } })
    const labels = {
      'app.kubernetes.io/name': 'weft',
      'app.kubernetes.io/instance': 'flannel',
      'app.kubernetes.io/managed-by': 'Helm',
      'helm.sh/chart': expect.stringMatching(/^flannel-\d/),
    }
    expect(objects).toHaveLength(12)
    for (const { kind, metadata } of objects) expect(metadata, kind).toMatchObject({ labels })
    expect(find(objects, 'DaemonSet')).toMatchObject({ spec: { template: { metadata: { labels } } } })
    for (const object of objects.filter(({ kind }) => kind === 'DaemonSet'))
      expect(JSON.stringify((object as unknown as { spec: { selector: unknown } }).spec.selector)).not.toContain('k8s')
  })

  it('restarts its pods by a checksum if the network configuration changes', () => {
    const checksum = (values: Values): unknown => {
      const daemonSet = find(render(values), 'DaemonSet') as unknown as {
        spec: { template: { metadata: { annotations: Record<string, string> } } }
      }
      return daemonSet.spec.template.metadata.annotations['checksum/net-conf']
    }
    const usual = checksum({})
    expect(usual).toMatch(/^[\da-f]{64}$/)
    expect(checksum({ flannel: { resources: null } })).toBe(usual)
    const changed = [
      { flannel: { backend: 'udp' } },
      { podCidr: '10.9.0.0/16' },
      { weft: { backend: { VerifySource: 'off' } } },
      { flannel: { cniConf: '{}' } },
    ].map(checksum)
    expect(new Set([usual, ...changed]).size).toBe(5)
  })

  it('sets the security contexts, volumes, digest and history from the values', () => {
    const digest = `sha256:${'a'.repeat(64)}`
    const objects = render({
      flannel: { image: { digest }, flannel_cni: { image: { digest } } },
      weft: {
        podSecurityContext: { seLinuxOptions: { type: 'spc_t' }, appArmorProfile: { type: 'Unconfined' } },
        containerSecurityContext: { runAsUser: 0 },
        extraVolumes: [{ name: 'certs', hostPath: { path: '/etc/pki' } }],
        extraVolumeMounts: [{ name: 'certs', mountPath: '/etc/pki' }],
        revisionHistoryLimit: 0,
      },
    })
    const pod = podOf(objects)
    expect(pod.securityContext).toEqual({
      seccompProfile: { type: 'RuntimeDefault' },
      seLinuxOptions: { type: 'spc_t' },
      appArmorProfile: { type: 'Unconfined' },
    })
    for (const { securityContext, image } of [...pod.initContainers, ...pod.containers]) {
      expect(securityContext).toMatchObject({ runAsUser: 0, allowPrivilegeEscalation: false })
      expect(image).toMatch(new RegExp(`:[^:@]+@${digest}$`))
    }
    // The tag of a released chart includes the digest of the release.
    const released = { tag: `1.0@sha256:${'b'.repeat(64)}` }
    const imageOf = (image: Values) => podOf(render({ flannel: { image } })).containers[0].image
    expect(imageOf(released)).toBe(`weft:${released.tag}`)
    expect(imageOf({ ...released, digest })).toBe(`weft:1.0@${digest}`)
    expect(pod.containers[0].securityContext['capabilities']).toEqual({ drop: ['ALL'], add: ['NET_ADMIN'] })
    expect(pod.volumes).toContainEqual({ name: 'certs', hostPath: { path: '/etc/pki' } })
    expect(pod.containers[0].volumeMounts).toContainEqual({ name: 'certs', mountPath: '/etc/pki' })
    expect(find(objects, 'DaemonSet')).toMatchObject({ spec: { revisionHistoryLimit: 0 } })
    for (const values of [
      { weft: { containerSecurityContext: { capabilities: { add: ['SYS_ADMIN'] } } } },
      { weft: { containerSecurityContext: { privileged: true } } },
      { flannel: { image: { digest: 'sha256:abc' } } },
    ])
      expect(() => render(values)).toThrow()
  })

  it('writes a tag of digits unchanged, although YAML parses such a tag as a number', () => {
    const image = { tag: 20_261_129 }
    const objects = render({ flannel: { image, flannel_cni: { image } }, netpol: { enabled: true, image } })
    const pods = objects.filter(({ kind }) => kind === 'DaemonSet').map((each) => podOf([each]))
    const images = pods.flatMap((pod) => [...('initContainers' in pod ? pod.initContainers : []), ...pod.containers])
    expect(images).toHaveLength(4)
    for (const { image: name } of images) expect(name).toMatch(/:20261129$/)
  })

  it("runs flannel's companion for network policies in pods of its own, with the values of flannel's chart", () => {
    const named = (objects: readonly KubeObject[], name: string) =>
      objects.filter(({ metadata }) => metadata.name === name)
    expect(named(render(), 'kube-network-policies')).toEqual([])
    const objects = render({ netpol: { enabled: true, image: { tag: 'v1.1.1' } } })
    const [account, daemonSet] = named(objects, 'kube-network-policies')
    expect(account!.kind).toBe('ServiceAccount')
    const [container] = podOf([daemonSet!]).containers
    expect(container).toMatchObject({
      image: 'registry.k8s.io/networking/kube-network-policies:v1.1.1',
      args: ['--hostname-override=$(MY_NODE_NAME)', '--v=2'],
      securityContext: { privileged: true },
    })
    expect(rightsOf(named(objects, 'flannel-network-policies'))).toContain('watch networkpolicies')
    expect(find(objects, 'DaemonSet')).toBeDefined()
    const own = objects.filter(({ metadata }) => !/network-policies/.test(metadata.name))
    holds(own)
  })

  it('sets the labels, images and account of its pods from the values', () => {
    const objects = render({
      flannel: { image: { pullPolicy: 'Always' }, flannel_cni: { image: { pullPolicy: 'Never' } } },
      weft: {
        podLabels: { team: 'net', 'example.com/a': '1' },
        serviceAccount: { annotations: { 'example.com/role': 'arn:1' } },
        startupProbe: { failureThreshold: 5, exec: { command: ['true'] } },
        terminationGracePeriodSeconds: 10,
      },
    })
    holds(objects)
    const pod = podOf(objects)
    const policies = [...pod.initContainers, ...pod.containers].map(
      (each) => (each as unknown as { imagePullPolicy: string }).imagePullPolicy,
    )
    expect(policies).toEqual(['Never', 'Always', 'Always'])
    const { template } = (find(objects, 'DaemonSet') as unknown as { spec: { template: { metadata: object } } }).spec
    expect(template.metadata).toMatchObject({ labels: { app: 'flannel', team: 'net', 'example.com/a': '1' } })
    expect(find(objects, 'ServiceAccount').metadata).toMatchObject({ annotations: { 'example.com/role': 'arn:1' } })
    expect(pod).toMatchObject({ terminationGracePeriodSeconds: 10 })
    expect(pod.containers[0].startupProbe).toEqual({
      exec: { command: ['weft', 'ready', '--wait=50'] },
      failureThreshold: 5,
      periodSeconds: 1,
      timeoutSeconds: 60,
    })
    for (const weft of [
      { podLabels: { app: 'other' } },
      { podLabels: { team: 1 } },
      { serviceAccount: { name: 'other' } },
      { terminationGracePeriodSeconds: -1 },
    ])
      expect(() => render({ weft })).toThrow()
    const monitored = { monitoring: { enabled: true }, statusIp: '0.0.0.0' }
    for (const healthz of [{ port: 0 }, { port: null }, null])
      expect(() => render({ flannel: { healthz }, weft: monitored })).toThrow(/needs flannel\.healthz\.port/)
    expect(() => render({ flannel: { image: { pullPolicy: 'Sometimes' } } })).toThrow(/pullPolicy/)
  })

  it('explains after an installation how to check it, and that a ConfigMap alone restarts no pod', () => {
    const notes = readFileSync(join(chart, 'templates/NOTES.txt'), 'utf8')
    expect(notes).toContain('rollout restart daemonset/kube-flannel-ds')
    expect(parse(readFileSync(join(chart, 'Chart.yaml'), 'utf8'))).toMatchObject({ kubeVersion: '>=1.19.0-0' })
  })

  it('has two pods for `helm test`, without rights, unless nothing can be queried', () => {
    interface TestPod extends KubeObject {
      readonly metadata: KubeObject['metadata'] & { readonly annotations: Readonly<Record<string, string>> }
      readonly spec: {
        readonly hostNetwork: boolean
        readonly containers: readonly { readonly command: readonly string[]; readonly env: unknown }[]
      }
    }
    const testPods = (values: Values = {}) =>
      render(values, 'templates/tests/network.yaml') as unknown as readonly TestPod[]
    const pods = testPods({ flannel: { healthz: { port: 9000 }, nodeSelector: { role: 'worker' } } })
    expect(pods.map(({ metadata, spec }) => [metadata.name, spec.hostNetwork, spec.containers[0]!.command[4]])).toEqual(
      [
        ['flannel-test-node', true, 'node'],
        ['flannel-test-pod', false, 'pod'],
      ],
    )
    const program = readFileSync(join(chart, 'files/test.sh'), 'utf8')
    for (const { metadata, spec } of pods) {
      expect(metadata.annotations['helm.sh/hook']).toBe('test')
      expect(spec).toMatchObject({
        automountServiceAccountToken: false,
        securityContext: { runAsNonRoot: true },
        affinity: podOf(manifestObjects()).affinity,
        nodeSelector: { role: 'worker' },
      })
      expect(spec).not.toHaveProperty('volumes')
      expect(spec.containers[0]).toMatchObject({
        image: podOf(manifestObjects()).containers[0].image,
        env: [{ name: 'HEALTH_PORT', value: '9000' }],
        securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
      })
      expect(spec.containers[0]!.command.slice(0, 4)).toEqual(['sh', '-c', program, 'test'])
    }
    expect(program).not.toMatch(/\$\(HEALTH_PORT\)/) // Kubernetes would replace it
    expect(() => testPods({ flannel: { healthz: { port: 0 } } })).toThrow(/could not find template/)
    expect(testPods({ weft: null })).toHaveLength(2)
  })

  it('keeps a pre-shared key in a Secret, or reads the whole configuration from one', () => {
    const parts = (values: Values) => {
      const objects = render(values)
      const named = (kind: string) => objects.filter((object) => object.kind === kind) as unknown as Secret[]
      const sources = (podOf(objects).volumes.find(({ name }) => name === 'flannel-cfg') as unknown as Projected)
        .projected
      return { text: JSON.stringify(named('ConfigMap')), secrets: named('Secret'), sources: sources.sources }
    }
    interface Secret {
      readonly metadata: { readonly name: string }
      readonly stringData: Readonly<Record<string, string>>
    }
    interface Projected {
      readonly projected: { readonly sources: unknown }
    }
    const flannel = { backend: 'wireguard', psk: '0"' }
    const own = parts({ flannel })
    expect(parts({ flannel: { backend: 'wireguard' }, weft: { backend: { PSK: '0"' } } })).toEqual(own)
    expect(own.text).not.toMatch(/net-conf|PSK/)
    expect(own.secrets.map(({ metadata }) => metadata.name)).toEqual(['kube-flannel-cfg'])
    expect(JSON.parse(own.secrets[0]!.stringData['net-conf.json']!)).toEqual({
      Network: '10.244.0.0/16',
      Backend: { Type: 'wireguard', PSK: '0"' },
    })
    for (const secret of [{ AccessKeySecret: 's3cret' }, { Headers: { Authorization: 's3cret' } }]) {
      const { text, secrets } = parts({ flannel: { backend: 'ali-vpc' }, weft: { backend: secret } })
      expect(text).not.toContain('s3cret')
      expect(secrets.map(({ stringData }) => stringData['net-conf.json'])).toEqual([expect.stringContaining('s3cret')])
    }
    const digits = parts({ flannel: { ...flannel, psk: 123_456_789 } }).secrets[0]!.stringData['net-conf.json']!
    expect(JSON.parse(digits)).toMatchObject({ Backend: { PSK: '123456789' } })
    const configMap = { configMap: { name: 'kube-flannel-cfg' } }
    expect(own.sources).toEqual([configMap, { secret: { name: 'kube-flannel-cfg', optional: true } }])
    const given = parts({ flannel, weft: { configSecret: 'mine' } })
    expect(given.text).not.toMatch(/net-conf|PSK/)
    expect(given).toMatchObject({ secrets: [], sources: [configMap, { secret: { name: 'mine', optional: false } }] })
  })

  it('has a network for each family of the cluster', () => {
    const made = (values: Values): { readonly config: unknown; readonly args: readonly string[] } => {
      const objects = render(values)
      holds(objects)
      return { config: JSON.parse(dataOf(objects)['net-conf.json']), args: podOf(objects).containers[0].args ?? [] }
    }
    const ipv6 = { EnableIPv6: true, IPv6Network: 'fd00:244::/56' }
    const both = made({ podCidrv6: 'fd00:244::/56' })
    expect(both.config).toEqual({ Network: '10.244.0.0/16', ...ipv6, Backend: { Type: 'vxlan' } })
    // An operator's own address comes later on the command line, and takes precedence.
    expect(both.args).toEqual(['--healthz-ip=::', '--ip-masq', '--kube-subnet-mgr', '--healthz-port=8081'])
    const flannel = { backend: 'wireguard', backendPort: 51822, backendPortv6: 51823 }
    expect(made({ podCidr: '', podCidrv6: 'fd00:244::/56', flannel }).config).toEqual({
      EnableIPv4: false,
      ...ipv6,
      Backend: { Type: 'wireguard', ListenPort: 51822, ListenPortV6: 51823 },
    })
    expect(made({}).args).not.toContain('--healthz-ip=::')
    expect(() => render({ podCidr: '' })).toThrow('set podCidr, podCidrv6 or both')
  })
})

describe('a real API server', () => {
  const lacks = needs(KUBE_APISERVER, 'openssl', 'etcd', 'etcdctl')
  let api: RealKubeApi | undefined
  beforeEach(async () => {
    if (lacks === undefined) api = await startKubeApiserver()
  })
  afterEach(() => api?.close())

  it('accepts each object of the manifest', async () => {
    // The server is version 1.20, which has no maxSurge. It gets the objects that docs/kubernetes/updates.md gives for such a cluster.
    const older = (object: KubeObject): KubeObject =>
      object.kind === 'DaemonSet'
        ? ({ ...object, spec: { ...updateOf([object]), updateStrategy: undefined } } as KubeObject)
        : object
    for (const object of manifestObjects().map(older)) {
      const { status, body } = await api!.admin.create(object)
      expect([object.kind, status, body]).toEqual([object.kind, 201, expect.objectContaining({ kind: object.kind })])
    }
  })

  it("turns a release of flannel's chart into weft's with --reuse-values, and back", async ({ skip }) => {
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
    // A chart that looks like flannel's to Helm: its name, the names of its objects, and its values.
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
      Network: '10.9.0.0/16',
      Backend: { Type: 'host-gw' },
    })
    run('rollback', 'flannel')
    expect(podOf([await daemonSet()]).containers[0].image).toBe('ghcr.io/flannel-io/flannel:v0.28.9')
    rmSync(folder, { recursive: true })
  })
})
