// update.test.ts - `npm run test:kubelet`: a real kubelet with containerd replaces a node's pod by a newer one while containers talk.
//
// The pod is the manifest's, with its image, probes, init containers, security context and volumes. Only its network configuration and its
// leases are in folders, and its host paths are the lab's. The test plays the DaemonSet controller, which decides when pods are created and
// deleted, according to kubernetes/pkg/controller/daemon/update.go.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createLab, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { buildImage, IMAGE } from '../support/container-image.ts'
import { manifestObjects, type KubeObject } from '../support/kube-manifest.ts'
import { isReady, soon, startKubelet, type Kubelet } from '../support/kubelet.ts'
import { HOSTS, needs, NODE } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { isolatePodman } from '../support/podman.ts'

const MINUTE = 60_000
const PROGRAM = process.env['WEFT_KUBELET'] ?? ''
const lacks = needs(HOSTS, 'containerd', 'podman', 'runc', 'mmdebstrap', 'gcc', 'curl', 'ping', NODE)

let lab: Lab
let a: Host
let b: Host
let kubelet: Kubelet
let containers: [Pod, Pod]
/** The forwarding pod on host a. */
let current: string
let count = 0
const leases = (): string => join(lab.folder, 'leases')
/** Returns a name that no pod of another run has, because their logs are in the same folder. */
const nextName = (): string => `weft-${process.pid}-${++count}`

interface Volume {
  readonly name: string
  readonly hostPath?: { readonly path: string; readonly type: string }
  readonly projected?: object
}
interface Container {
  readonly name: string
  readonly args: readonly string[]
  readonly env?: readonly object[]
  readonly volumeMounts: readonly object[]
}
interface PodSpec {
  readonly initContainers: readonly Container[]
  readonly containers: readonly [Container]
  readonly volumes: readonly Volume[]
}

/** Returns the manifest's pod for host a. */
function podNamed(
  name: string,
  change: (spec: PodSpec) => object = (spec) => spec,
): KubeObject & { readonly spec: object } {
  const daemonSet = manifestObjects().find(({ kind }) => kind === 'DaemonSet') as unknown as {
    spec: { template: { metadata: object; spec: PodSpec & { serviceAccountName: string; priorityClassName: string } } }
  }
  const { metadata, spec } = daemonSet.spec.template
  // The parts that need an API server or the scheduler are removed.
  const { serviceAccountName: _, priorityClassName: __, ...rest } = spec
  const folder = (volume: string): string => join(lab.folder, 'node', volume)
  const volumes = spec.volumes.map((volume): Volume => {
    // kubelet reads ConfigMaps and Secrets from the API server, which this test does not have.
    if (volume.projected) return { name: volume.name, hostPath: { path: folder('config'), type: 'Directory' } }
    if (!volume.hostPath || volume.name === 'dev-net') return volume
    const path = volume.name === 'run' ? dirname(a.subnetFile) : folder(volume.name)
    return { ...volume, hostPath: { ...volume.hostPath, path } }
  })
  const own = { image: `${IMAGE}:latest`, imagePullPolicy: 'Never' }
  const [daemon] = spec.containers
  const pod: PodSpec = {
    ...rest,
    initContainers: spec.initContainers.map((each) => ({
      ...each,
      ...own,
      // The path in the manifest exists only in another image, so copy a file that weft's image has.
      args: each.name === 'install-cni-plugin' ? ['-f', '/opt/bin/flanneld', '/opt/cni/bin/flannel'] : each.args,
    })),
    containers: [
      {
        ...daemon,
        ...own,
        args: [...daemon.args.filter((flag) => flag !== '--kube-subnet-mgr'), '--lease-dir=/var/lib/weft'],
        volumeMounts: [...daemon.volumeMounts, { name: 'leases', mountPath: '/var/lib/weft' }],
      },
    ],
    volumes: [...volumes, { name: 'leases', hostPath: { path: leases(), type: 'Directory' } }],
  }
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { ...metadata, name, namespace: 'kube-flannel' },
    spec: change(pod),
  }
}

/** Writes the image in the format of `docker save`. */
async function archiveOf(): Promise<string> {
  const given = process.env['WEFT_IMAGE_ARCHIVE'] ?? ''
  if (given !== '') return given
  const podman = isolatePodman(join(lab.folder, 'podman'))
  await buildImage(podman)
  const archive = join(lab.folder, 'weft.tar')
  await podman.run('save', '--quiet', '--format', 'docker-archive', '--output', archive, IMAGE)
  return archive
}

beforeAll(async () => {
  if (lacks !== undefined) return
  lab = await createLab({ hosts: 2 })
  ;[a, b] = lab.hosts as [Host, Host]
  mkdirSync(leases())
  const config = join(lab.folder, 'node/config')
  mkdirSync(config, { recursive: true })
  writeFileSync(join(config, 'cni-conf.json'), '{"name":"cbr0"}')
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'udp' } }))
  const other = b.startDaemon({ args: ['--lease-dir', leases()] })
  await other.line(/flannel is ready/)
  kubelet = await startKubelet(PROGRAM, a, join(lab.folder, 'kubelet'), [await archiveOf()])
  current = nextName()
  kubelet.create(podNamed(current))
  await kubelet.ready(current)
  containers = [await a.startPod(), await b.startPod()]
  await reach(containers[0].namespace, containers[1].address)
}, 60 * MINUTE)
afterAll(async () => {
  await kubelet?.close()
  await lab?.close()
}, 5 * MINUTE)

const pings = () => pinging(...containers, { everyS: 0.01 })
const subnet = (): string | undefined => a.subnetEnv()['FLANNEL_SUBNET']

describe('a node whose pod is replaced', { timeout: 20 * MINUTE }, () => {
  it('with maxSurge loses no packet', async () => {
    const held = subnet()
    const [old, next] = [current, nextName()]
    const pinged = pings()
    const began = performance.now()
    kubelet.create(podNamed(next))
    await kubelet.ready(next)
    const tookS = (performance.now() - began) / 1000
    kubelet.remove(old)
    await kubelet.gone(old)
    current = next
    const { sent, lost } = await pinged.stop()
    process.stdout.write(
      `  ${kubelet.versions}\n  by surge: ${lost} of ${sent} pings lost; ready after ${tookS.toFixed(1)} s\n`,
    )
    expect(lost).toBe(0)
    expect(sent).toBeGreaterThan(100)
    expect(subnet()).toBe(held)
    expect(await kubelet.log(next)).toMatch(/Another weftd forwards \(pid unknown\)/)
    await reach(containers[1].namespace, containers[0].address)
  })

  it('without maxSurge forwards again with the new pod, and keeps its subnet', async () => {
    const held = subnet()
    const [old, next] = [current, nextName()]
    const pinged = pings()
    kubelet.remove(old)
    await kubelet.gone(old)
    kubelet.create(podNamed(next))
    await kubelet.ready(next)
    current = next
    await reach(containers[0].namespace, containers[1].address)
    const { sent, lost } = await pinged.stop()
    process.stdout.write(`  without surge: ${lost} of ${sent} pings lost, 10 ms apart\n`)
    expect(subnet()).toBe(held)
  })

  it('keeps its old pod if the new pod has a missing image or wrong flags', async () => {
    const pinged = pings()
    const imageless = nextName()
    kubelet.create(podNamed(imageless, (spec) => changed(spec, { image: 'localhost/there-is-none' })))
    await soon(async () => expect((await containerOf(imageless))?.state.waiting?.reason).toMatch(/Image/))
    kubelet.remove(imageless)
    // The container ends, is restarted, and ends again.
    const wrong = nextName()
    kubelet.create(podNamed(wrong, (spec) => changed(spec, { args: ['--lease-dir=/run/weft', '--healthz-port=8081'] })))
    await soon(async () => expect((await containerOf(wrong))?.restartCount).toBeGreaterThan(1))
    expect(isReady(await kubelet.status(wrong))).toBe(false)
    kubelet.remove(wrong)
    for (const name of [imageless, wrong]) await kubelet.gone(name)
    expect((await pinged.stop()).lost).toBe(0)
    expect(isReady(await kubelet.status(current))).toBe(true)
  })

  it('keeps its old pod while the new pod waits for its store, although the port answers', async () => {
    const [old, next] = [current, nextName()]
    const pinged = pings()
    const config = join(leases(), 'config')
    const text = readFileSync(config, 'utf8')
    writeFileSync(config, '')
    kubelet.create(podNamed(next))
    await soon(async () => expect(await kubelet.log(next)).toMatch(/Another weftd forwards/))
    await soon(async () => expect(await kubelet.probes(next, 'Startup', 'failed')).toBeGreaterThan(0))
    expect(await kubelet.probes(next, 'Startup', 'successful')).toBe(0)
    expect(isReady(await kubelet.status(next))).toBe(false)
    expect(await containerOf(next)).toMatchObject({ started: false, restartCount: 0 })
    expect(isReady(await kubelet.status(old))).toBe(true)
    writeFileSync(config, text)
    await kubelet.ready(next)
    kubelet.remove(old)
    await kubelet.gone(old)
    current = next
    expect((await pinged.stop()).lost).toBe(0)
  })

  it('forwards with its old pod when the new one dies, and hands over when the new one is back', async () => {
    const [old, next] = [current, nextName()]
    kubelet.create(podNamed(next))
    await kubelet.ready(next)
    const pinged = pings()
    process.kill(await kubelet.pid(next), 'SIGKILL')
    await soon(async () => expect(await kubelet.log(old)).toMatch(/nobody forwards: this one goes on/))
    await soon(async () => expect(await containerOf(next)).toMatchObject({ restartCount: 1, ready: true }))
    const said = await kubelet.log(old)
    kubelet.remove(old)
    await kubelet.gone(old)
    current = next
    const { sent, lost } = await pinged.stop()
    process.stdout.write(`  the new one killed: ${lost} of ${sent} pings lost, 10 ms apart\n`)
    expect(said.match(/Waiting to be stopped/g)).toHaveLength(2)
    await reach(containers[0].namespace, containers[1].address)
  })

  it('cannot run a second pod that declares a host port', async () => {
    const ports = [{ containerPort: 9999, hostPort: 9999 }]
    const [first, second] = [nextName(), nextName()]
    kubelet.create(podNamed(first, (spec) => changed(spec, { ports })))
    await soon(async () => expect(await kubelet.status(first)).toMatchObject({ phase: 'Running' }))
    kubelet.create(podNamed(second, (spec) => changed(spec, { ports })))
    await soon(async () =>
      expect(await kubelet.status(second)).toMatchObject({ phase: 'Failed', message: expect.stringMatching(/ports/i) }),
    )
  })
})

const containerOf = async (name: string) => (await kubelet.status(name))?.containerStatuses?.[0]
const changed = (spec: PodSpec, daemon: object): object => ({
  ...spec,
  containers: [{ ...spec.containers[0], ...daemon }],
})
