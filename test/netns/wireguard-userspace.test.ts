// wireguard-userspace.test.ts - WireGuard by weftd itself: among its own kind, and beside wireguard-go and the kernel.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping', 'tcpdump')

const PSK = 'MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='

let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
async function start(host: Host, dataPath: string, options: object = {}): Promise<Daemon> {
  mkdirSync(leases(), { recursive: true })
  const Backend = { Type: 'wireguard', DataPath: dataPath, ...options }
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases()],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}

it('carries packets that nobody else can read', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const daemons = [await start(a, 'userspace', { PSK }), await start(b, 'userspace', { PSK })]
  expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1420\n')
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  await reach(podB.namespace, podA.address)
  for (const daemon of daemons) expect(daemon.lines.filter((line) => /^[EW]/.test(line))).toEqual([])
})
