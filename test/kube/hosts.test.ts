// hosts.test.ts - real daemons on hosts made of namespaces, whose leases are nodes of the Kubernetes API.

import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { answers, subnetOf } from '../support/hosts.ts'
import type { KubeApi } from '../support/kube-admin.ts'
import { allow, KUBE_APISERVER, startKubeApiserver } from '../support/kube-apiserver.ts'
import { openKubeRelay, type KubeRelay } from '../support/kube-relay.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'openssl', 'iptables', 'tcpdump', 'ping')

const P = 'flannel.alpha.coreos.com'
/** The annotations that flanneld v0.28.9 wrote on its node, by backend type, as recorded; the MAC is this test's. */
const FLANNEL_MAC = '02:00:00:00:00:03'
const RECORDED: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  udp: { [`${P}/backend-data`]: 'null', [`${P}/backend-type`]: '' },
  vxlan: { [`${P}/backend-data`]: `{"VNI":1,"VtepMAC":"${FLANNEL_MAC}"}`, [`${P}/backend-type`]: 'vxlan' },
}
const PORTS: Readonly<Record<string, number>> = { udp: 8285, vxlan: 8472 }

let lab: Lab | undefined
let api: KubeApi | undefined
let relay: KubeRelay | undefined
afterEach(async () => {
  await lab?.close()
  await relay?.close()
  await api?.close()
  lab = api = relay = undefined
})

const BEDS: readonly (readonly [string, () => Promise<KubeApi>])[] = [
  ['small', startKubeServer],
  ...(KUBE_APISERVER === '' ? [] : [['real', startKubeApiserver] as const]),
]

describe.each(BEDS)('on the %s server', (kind, start) => {
  interface Cluster {
    readonly hosts: readonly Host[]
    readonly admin: KubeApi['admin']
    startDaemon(host: Host, args?: readonly string[]): Daemon
  }
  async function cluster(hosts: number, backend: string): Promise<Cluster> {
    lab = await createLab({ hosts })
    api = await start()
    if (kind === 'real') await allow(api)
    relay = await openKubeRelay(lab, api)
    const { kubeconfig } = relay
    const netConf = join(lab.folder, 'net-conf.json')
    writeFileSync(netConf, JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: backend } }))
    return {
      hosts: lab.hosts,
      admin: api.admin,
      startDaemon: (host, args = []) =>
        host.startDaemon({
          args: [
            '--kube-subnet-mgr',
            '--kubeconfig-file',
            kubeconfig,
            '--net-config-path',
            netConf,
            '--ip-masq',
            ...args,
          ],
          env: { NODE_NAME: host.name },
        }),
    }
  }
  const condition = async ({ admin }: Cluster, name: string) =>
    (await admin.node(name)).status?.conditions?.find(({ type }) => type === 'NetworkUnavailable')

  it.each(['udp', 'vxlan'])(
    "%s reaches nodes of the same backend, and a node with flannel's recorded annotations",
    async (backend) => {
      const made = await cluster(3, backend)
      const [a, b, c] = made.hosts as [Host, Host, Host]
      for (const [at, host] of made.hosts.entries())
        await made.admin.addNode(
          host.name,
          `10.5.${at + 1}.0/24`,
          host === c
            ? { ...RECORDED[backend], [`${P}/kube-subnet-manager`]: 'true', [`${P}/public-ip`]: c.address }
            : {},
        )
      const daemons = [a, b].map((host) => made.startDaemon(host))
      await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
      expect([a, b].map(subnetOf)).toEqual(['10.5.1.0/24', '10.5.2.0/24'])
      const [podA, podB] = [await a.startPod(), await b.startPod()]
      await reach(podA.namespace, podB.address)
      await reach(podB.namespace, podA.address)
      // Packets to the third node have the backend's format, and the MAC that this node published.
      const captured = c.spawn([
        'tcpdump',
        '-c',
        '1',
        '-l',
        '-n',
        '-e',
        '-i',
        'eth0',
        `udp dst port ${PORTS[backend]} and src host ${a.address}`,
      ])
      let text = ''
      captured.stdout!.setEncoding('utf8').on('data', (part: string) => (text += part))
      const over = once(captured, 'exit')
      let isOver = false
      void over.then(() => (isOver = true))
      await eventually(async () => {
        await podA.run(['ping', '-n', '-c', '1', '-W', '1', '10.5.3.7'])
        expect(isOver).toBe(true)
      })
      if (backend === 'vxlan') expect(text).toContain(`> ${FLANNEL_MAC}`)
      await eventually(async () =>
        expect(await condition(made, a.name)).toMatchObject({ status: 'False', reason: 'FlannelIsUp' }),
      )
      expect(await condition(made, c.name)).toBeUndefined()
    },
  )

  it('continues to forward while the API is unavailable, and learns of the changes afterwards', async () => {
    const made = await cluster(2, 'udp')
    const [a, b] = made.hosts as [Host, Host]
    for (const [at, host] of made.hosts.entries()) await made.admin.addNode(host.name, `10.5.${at + 1}.0/24`)
    const daemons = made.hosts.map((host) => made.startDaemon(host))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podA.namespace, podB.address)
    relay!.refuse(true)
    relay!.cut()
    await daemons[0]!.line(/kubernetes watch channel for leases closed/)
    await answers(podA.namespace, podB.address)
    await made.admin.addNode('later', '10.5.9.0/24', {
      ...RECORDED['udp'],
      [`${P}/kube-subnet-manager`]: 'true',
      [`${P}/public-ip`]: '192.168.77.9',
    })
    relay!.refuse(false)
    await daemons[0]!.line(/Subnet added: 10\.5\.9\.0\/24$/)
    await answers(podA.namespace, podB.address)
  })

  it('uses a podCIDR that comes late, and a changed one without a restart', async () => {
    const made = await cluster(2, 'vxlan')
    const [a, b] = made.hosts as [Host, Host]
    await made.admin.addNode(a.name)
    await made.admin.addNode(b.name, '10.5.2.0/24')
    const daemons = made.hosts.map((host) => made.startDaemon(host))
    await daemons[0]!.line(/node "host1" pod cidr not assigned: waiting for it/)
    await made.admin.givePodCidr(a.name, '10.5.1.0/24')
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    expect(subnetOf(a)).toBe('10.5.1.0/24')
    await made.admin.removeNode(a.name)
    await made.admin.addNode(a.name, '10.5.7.0/24')
    await daemons[0]!.line(/This node moves from 10\.5\.1\.0\/24 to 10\.5\.7\.0\/24/)
    await eventually(() => expect(subnetOf(a)).toBe('10.5.7.0/24'))
    const [podA, podB] = [await a.startPod(), await b.startPod()]
    await reach(podB.namespace, podA.address)
    await eventually(async () => expect(await condition(made, a.name)).toMatchObject({ reason: 'FlannelIsUp' }))
  })

  it('keeps the MAC of vxlan in its annotation, and returns to flannel unchanged', async () => {
    const made = await cluster(1, 'vxlan')
    const [a] = made.hosts as [Host]
    // flannel ran here earlier, and its device disappeared when the host was restarted.
    const before = { ...RECORDED['vxlan'], [`${P}/kube-subnet-manager`]: 'true', [`${P}/public-ip`]: a.address }
    await made.admin.addNode(a.name, '10.5.1.0/24', before)
    const { metadata } = await made.admin.node(a.name)
    const daemon = made.startDaemon(a)
    await daemon.line(/flannel is ready/)
    expect(await a.output(['ip', 'link', 'show', 'flannel.1'])).toContain(FLANNEL_MAC)
    expect((await made.admin.node(a.name)).metadata?.annotations).toEqual(metadata?.annotations)
    const weft = (...words: string[]) =>
      a.run([process.execPath, join(packageRoot, 'bin/weft'), ...words, '--status-socket', a.statusSocket])
    expect((await weft('status')).stdout).toContain('kubernetes')
    expect(await weft('lease', 'ls')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining(
        "the leases of this host's daemon are nodes of Kubernetes; see the leases with `weft peers`",
      ),
    })
    expect(await daemon.stop()).toBe(0)
    expect(api!.asked().filter(({ isAllowed }) => !isAllowed)).toEqual([])
    expect((await made.admin.node(a.name)).metadata?.annotations).toEqual(metadata?.annotations)
  })
})
