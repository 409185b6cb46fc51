// ipsec-mixed.test.ts - a network with the backend ipsec in which weftd runs on one host and flannel's own flanneld on the other. It runs
// in a virtual machine (`npm run test:vm`), because the kernel must carry ESP packets.

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, subnetOfEnv, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { FLANNELD } from '../../scripts/flanneld.mjs'
import { run } from '../../src/host/command.ts'
import { canKernelCarryEsp } from '../../src/path/backends/ipsec/kernel-esp.ts'
import { apart } from '../support/charon.ts'
import { eventually } from '../support/event.ts'
import { CHARON, ETCD, GCM, HOSTS, needs, VICI } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'ping', CHARON, VICI, GCM)

const PSK = 'only for tests. '.repeat(6)

let lab: Lab
let etcd: Etcd
let hosts: readonly [Host, Host]

beforeEach(async ({ skip }) => {
  if (!existsSync(FLANNELD)) skip(`there is no ${FLANNELD}: \`npm run test:vm\` builds it`)
  if (!(await canKernelCarryEsp(run))) skip('the kernel cannot carry ESP packets (CONFIG_INET_ESP)')
  lab = await createLab({ hosts: 2 })
  hosts = lab.hosts as unknown as [Host, Host]
  etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
})
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
})

it.each([[false], [true]])('containers of weftd and of flanneld reach each other; UDPEncap: %s', async (UDPEncap) => {
  const Backend = { Type: 'ipsec', PSK, UDPEncap }
  await etcd.ctl('put', '/coreos.com/network/config', JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const [one, two] = hosts
  const daemon = one.startDaemon({ before: apart(lab), args: ['--etcd-endpoints', etcd.endpoint] })
  const file = join(lab.folder, 'flanneld.env')
  const flannel = two.spawn([
    ...apart(lab),
    FLANNELD,
    `--etcd-endpoints=${etcd.endpoint}`,
    '--iface=eth0',
    `--subnet-file=${file}`,
  ])
  let said = ''
  flannel.stderr?.on('data', (piece: Buffer) => (said += piece.toString()))
  flannel.stdout?.on('data', (piece: Buffer) => (said += piece.toString()))
  try {
    await daemon.line(/flannel is ready/)
    await eventually(() => expect(existsSync(file), said).toBe(true))
    expect(one.subnetEnv()['FLANNEL_MTU']).toBe(UDPEncap ? '1415' : '1423')
    const { stdout } = await execute(['cat', file])
    const env = Object.fromEntries(stdout.split('\n').map((line) => line.split('=') as [string, string]))
    expect(env['FLANNEL_MTU']).toBe(one.subnetEnv()['FLANNEL_MTU'])
    const [podOne, podTwo] = [await one.startPod(), await two.startPod(subnetOfEnv(env))]
    await reach(podOne.namespace, podTwo.address)
    await reach(podTwo.namespace, podOne.address)
    // The kernel has an association for each direction, so the packets were encrypted.
    const states = await one.output(['ip', 'xfrm', 'state'])
    expect(states).toContain('proto esp')
    expect(states.includes('espinudp')).toBe(UDPEncap)
  } finally {
    flannel.kill('SIGTERM')
    await ended(flannel)
  }
})
