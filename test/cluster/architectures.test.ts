// architectures.test.ts - the manifest of a release on a cluster with nodes of two architectures: amd64, and arm64 in an emulator.
//
// WEFT_RELEASE_DIR names the folder of the release; without it these tests are skipped. emulated-node.ts says which programs of the second
// node are emulated.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { packageRoot, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { emulateArm64, type Emulation } from '../support/emulated-node.ts'
import { nodesAre, startCluster, webObjects, type KubeCluster, type PodObject } from '../support/kube-cluster.ts'
import type { KubeNode } from '../support/kube-node.ts'
import { soon } from '../support/kubelet.ts'
import { printStep } from '../support/long-step.ts'

const MINUTE = 60_000
const PROGRAMS = process.env['WEFT_CLUSTER_PROGRAMS'] ?? ''
const RELEASE = process.env['WEFT_RELEASE_DIR'] ?? ''
const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
/** Node.js's names of the architectures of the two nodes. */
const NAMES = ['x64', 'arm64']

describe.skipIf(RELEASE === '')('the manifest of a release', { timeout: 20 * MINUTE }, () => {
  let emulation: Emulation
  let cluster: KubeCluster<readonly [KubeNode, KubeNode]>
  const weftPods = (): Promise<readonly PodObject[]> => cluster.podOnEachNode('kube-flannel', 'app=flannel')
  const weft = (pod: PodObject, ...words: string[]): Promise<string> =>
    cluster.kubectl('-n', 'kube-flannel', 'exec', pod.metadata.name, '-c', 'kube-flannel', '--', 'weft', ...words)

  beforeAll(async () => {
    printStep('a cluster of two architectures')
    emulation = await emulateArm64(join(packageRoot, 'build/emulated-node'), PROGRAMS)
    cluster = await startCluster({
      programs: PROGRAMS,
      images: [join(RELEASE, `weft-image-${version}.tar`)],
      proxies: ['iptables', 'iptables'],
      emulation,
    })
  }, 30 * MINUTE)
  afterEach(async ({ task }) => {
    if (task.result?.state !== 'fail') return
    process.stdout.write(`${await cluster?.describe()}\n${cluster?.logs()}\n`)
  })
  afterAll(async () => {
    await cluster?.close()
    await emulation?.close()
  }, 5 * MINUTE)

  it('gives each node a pod of its architecture', async () => {
    const manifest = readFileSync(join(RELEASE, 'weft.yaml'), 'utf8')
    const [, name = '', digest = ''] = /image: (\S+?)(?::[^@\s]+)@(sha256:\w+)/.exec(manifest) ?? []
    // containerd knows a loaded image by its tag, and looks for the name with the digest, as after a download.
    for (const node of cluster.nodes) await node.tag(`${name}:${version}`, `${name}@${digest}`)
    // qemu-user refuses the requests for forwarding entries, which the backend vxlan needs.
    expect(manifest).toContain('"Type": "vxlan"')
    const file = join(cluster.work, 'weft.yaml')
    writeFileSync(file, manifest.replace('"Type": "vxlan"', '"Type": "udp"'))
    await cluster.kubectl('apply', '-f', file)
    const pods = await weftPods()
    for (const [index, pod] of pods.entries()) {
      const told = JSON.parse(await weft(pod, 'version', '--json')) as object
      expect(told).toMatchObject({ version, arch: NAMES[index] })
      expect(pod.status.containerStatuses?.[0]?.restartCount).toBe(0)
    }
    await nodesAre(cluster, true)
  })

  it('connects the pods of the nodes', async () => {
    await cluster.apply(...webObjects())
    const pods = await cluster.podOnEachNode('default', 'app=web')
    const [a, b] = (await Promise.all(pods.map((pod) => cluster.enter(pod)))) as [Pod, Pod]
    await reach(a.namespace, b.address)
    await reach(b.namespace, a.address)
    for (const pod of await weftPods()) await soon(async () => expect(await weft(pod, 'status')).toMatch(/working/))
  })
})
