// kernel-way-mixed.test.ts - two hosts with FastPath beside a host on which flannel's own flanneld runs. The eBPF programs carry the packets
// between the first two hosts only.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, subnetOfEnv, type Host, type Lab } from '../../lab/lab.ts'
import { FLANNELD } from '../../scripts/flanneld.mjs'
import { eventually } from '../support/event.ts'
import { statusOf } from '../support/hosts.ts'
import { carriedByKernel, promoted, transfer } from '../support/kernel-way.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'clang++', 'ethtool', 'python3', 'ping')

const CONFIG = { Network: '10.5.0.0/16', Backend: { Type: 'udp', FastPath: 'auto' } }

let lab: Lab
let etcd: Etcd
let hosts: readonly [Host, Host, Host]

beforeEach(async ({ skip }) => {
  if (!existsSync(FLANNELD)) skip(`there is no ${FLANNELD}: \`npm run test:vm\` builds it`)
  lab = await createLab({ hosts: 3 })
  hosts = lab.hosts as unknown as [Host, Host, Host]
  etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
})
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
})

it('weftd itself carries the packets of flanneld, and does not promote it', async () => {
  await etcd.ctl('put', '/coreos.com/network/config', JSON.stringify(CONFIG))
  const [a, b, other] = hosts
  const file = join(lab.folder, 'flanneld.env')
  const flannel = other.spawn([FLANNELD, `--etcd-endpoints=${etcd.endpoint}`, '--iface=eth0', `--subnet-file=${file}`])
  let said = ''
  flannel.stderr!.on('data', (piece: Buffer) => (said += piece.toString()))
  flannel.stdout!.resume()
  try {
    await eventually(() => expect(existsSync(file), said).toBe(true))
    const lines = readFileSync(file, 'utf8').split('\n')
    const subnet = subnetOfEnv(Object.fromEntries(lines.map((line) => line.split('=') as [string, string])))
    const daemons = [a, b].map((host) =>
      host.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint, '-v', '1'], before: [] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const [podA, podB, podOther] = [await a.startPod(), await b.startPod(), await other.startPod(subnet)]
    await promoted(podA, podB.address, daemons)

    // The proof asks flanneld, which does not answer.
    await promoted(podA, podOther.address, [daemons[0]!], /FastPath: weftd carries the packets to .*: the proof got no/)
    const before = await carriedByKernel(a)
    await transfer(podA, podOther, podOther.address, 4)
    await transfer(podOther, podA, podA.address, 4)
    const after = await carriedByKernel(a)
    // The probes between the first two hosts, of which there are some hundred on a slow machine. Each transfer has 2,900 packets.
    expect(after.sent - before.sent).toBeLessThan(1_000)

    const { dataPath, peers } = await statusOf(a)
    expect(dataPath?.fastPath).toMatchObject({ isActive: true, promoted: 1 })
    expect(Object.fromEntries(peers!.list.map((peer) => [peer.publicIp, peer.way]))).toEqual({
      [b.address]: 'kernel',
      [other.address]: expect.not.stringMatching('kernel'),
    })
    await transfer(podA, podB, podB.address, 4)
    expect((await carriedByKernel(a)).sent - after.sent).toBeGreaterThan(2_000)
  } finally {
    flannel.kill('SIGTERM')
    await ended(flannel)
  }
})
