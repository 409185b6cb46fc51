// without-iproute2.test.ts - hosts whose only `ip` is that of busybox, as on small boards. They exchange packets, and weftd starts neither
// that program nor another one.

import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { FAMILIES } from '../../src/net/address.ts'
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
  const config = { Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backend }
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
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
  ['udp', { Type: 'udp' }],
  ['vxlan', { Type: 'vxlan' }],
  ['vxlan by weftd', { Type: 'vxlan', DataPath: 'userspace' }],
  ['wireguard', { Type: 'wireguard' }],
  ['host-gw', { Type: 'host-gw' }],
])('%s carries packets of both families without iproute2, and repairs routes', async (_, backend) => {
  lab = await createLab({ hosts: 2, families: FAMILIES })
  const [a, b] = lab.hosts as [Host, Host]
  const bin = makeBin()
  const [first, second] = [await start(a, bin, backend), await start(b, bin, backend)]
  const [from, to] = [await a.startPod(), await b.startPod()]
  const talk = async (): Promise<void> => {
    for (const address of [to.address, to.ipv6!]) await reach(from.namespace, address)
  }
  await talk()
  for (const words of ['-4 route show root 10.5.0.0/16', '-6 route show root fd00:5::/48']) {
    const routes = (await a.output(['ip', ...words.split(' ')])).trim().split('\n')
    const [destination = ''] = routes.find((line) => !line.includes(' proto kernel '))!.split(' ')
    await a.output(['ip', words.slice(0, 2), 'route', 'del', destination])
    await first.line(
      new RegExp(`Repaired: the route to ${destination.replaceAll('.', String.raw`\.`)} (?:.* )?was gone`),
    )
  }
  await talk()
  expect([await first.stop(), await second.stop()]).toEqual([0, 0])
  expect(started()).toBe('')
})
