// without-iproute2.test.ts - hosts whose only `ip` is that of busybox, as on small boards. They exchange packets, and weftd starts neither
// that program nor another one.

import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'busybox', 'ping')

let lab: Lab
afterEach(() => lab?.close())

/** The programs that weftd must not start: those of iproute2 and wireguard-tools, and the one that ends children with weftd. */
const PROGRAMS = ['ip', 'bridge', 'wg', 'setpriv']
const calls = (): string => join(lab.folder, 'calls')
const started = (): string => (existsSync(calls()) ? readFileSync(calls(), 'utf8') : '')

/** Makes a folder with stand-ins for the programs, which record their calls. The stand-in for `ip` then runs that of busybox. */
function makeBin(): string {
  const bin = join(lab.folder, 'bin')
  mkdirSync(bin)
  for (const name of PROGRAMS) {
    const then = name === 'ip' ? 'exec /usr/bin/env PATH=/usr/bin:/bin busybox ip "$@"' : 'exit 127'
    writeFileSync(join(bin, name), `#!/bin/sh\necho "${name} $*" >> ${calls()}\n${then}\n`)
    chmodSync(join(bin, name), 0o755)
  }
  return bin
}

async function start(host: Host, bin: string, backend: object): Promise<Daemon> {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases, { recursive: true })
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  // weftd also looks for programs in /usr/sbin, so an empty folder hides that one.
  const hiding = `/usr/bin/mount -t tmpfs none /usr/sbin && export PATH=${bin} && exec "$@"`
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases, '--iptables-forward-rules=false'],
    env: { WIREGUARD_KEY_FILE: join(dirname(host.subnetFile), 'wgkey') },
    before: ['/usr/bin/unshare', '--mount', '/bin/sh', '-c', hiding, 'sh'],
  })
  await daemon.line(/flannel is ready/)
  return daemon
}

it.each([
  ['udp', { Type: 'udp' }, 'flannel0'],
  ['vxlan', { Type: 'vxlan' }, 'flannel.1'],
  ['wireguard', { Type: 'wireguard' }, 'flannel-wg'],
  ['host-gw', { Type: 'host-gw' }, undefined],
])('%s carries packets without iproute2, and repairs what others change', async (_, backend, device) => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const bin = makeBin()
  const [first, second] = [await start(a, bin, backend), await start(b, bin, backend)]
  const pods = [await a.startPod(), await b.startPod()] as const
  const talk = (): Promise<void> => reach(pods[0].namespace, pods[1].address)
  await talk()
  const route = (await a.output('ip route show root 10.5.0.0/16'.split(' ')))
    .split('\n')
    .find((line) => line.includes(device ?? ` via ${b.address} `))!
  await a.output(['ip', 'route', 'del', ...route.trim().split(' ').slice(0, 1)])
  await first.line(/Repaired: the route to .* was gone/)
  await talk()
  expect([await first.stop(), await second.stop()]).toEqual([0, 0])
  expect(started()).toBe('')
})
