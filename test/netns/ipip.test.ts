// ipip.test.ts - the ipip backend on kernels that support it: its device, its routes, what it repairs and what it leaves.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended, execute } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { subnetOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
const file = (subnet: string): string => join(leases(), 'subnets', subnet.replace('/', '-'))
function begin(host: Host, options: object = {}): Daemon {
  mkdirSync(leases(), { recursive: true })
  const config = { Network: '10.5.0.0/16', Backend: { Type: 'ipip', ...options } }
  writeFileSync(join(leases(), 'config'), JSON.stringify(config))
  return host.startDaemon({ args: ['--lease-dir', leases()] })
}
async function start(host: Host, options: object = {}): Promise<Daemon> {
  const daemon = begin(host, options)
  await daemon.line(/flannel is ready/)
  return daemon
}
const routes = async (host: Host): Promise<string[]> =>
  (await host.output('ip route show root 10.5.0.0/16'.split(' ')))
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line.includes(' via '))
    .toSorted()
const via = (host: Host): string => `${subnetOf(host)} via ${host.address} dev flannel.ipip onlink`

describe('ipip', () => {
  beforeEach(async ({ skip }) => {
    const { code, stderr } = await execute('unshare --net ip link add probe type ipip local 127.0.0.1'.split(' '))
    skip(code !== 0, `no ipip in the kernel: ${stderr.trim()}; npm run test:vm has one`)
  })

  it("has flanneld's device and routes, restores what others remove, and leaves them when it ends", async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    const daemons = [await start(a), await start(b), await start(c)]
    await daemons[0]!.line(/IPIP config: DirectRouting=false$/)
    const isWhole = () => eventually(async () => expect(await routes(a)).toEqual([via(b), via(c)].toSorted()))
    await isWhole()
    const shown = await a.output('ip -d link show dev flannel.ipip'.split(' '))
    expect(shown).toContain('mtu 1480')
    expect(shown).toContain(`ipip any remote any local ${a.address} ttl inherit nopmtudisc`)
    expect(await a.output('ip -br -4 address show dev flannel.ipip'.split(' '))).toContain(`${tunAddress(a)}/32`)
    expect(readFileSync(a.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1480\n')
    expect(readFileSync(file(subnetOf(a)), 'utf8')).toBe(
      `{"PublicIP":"${a.address}","PublicIPv6":null,"BackendType":"ipip"}`,
    )
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    const talk = () => reach(pods[0]!.namespace, pods[1]!.address)
    await talk()
    for (const [what, line] of [
      ['ip link del flannel.ipip', /Repaired: flannel\.ipip was gone/],
      [
        `ip link set flannel.ipip type ipip local ${a.address} pmtudisc`,
        /Repaired: flannel\.ipip set DF on every packet/,
      ],
      ['ip link set flannel.ipip down', /Repaired: flannel\.ipip was down/],
      ['ip address flush dev flannel.ipip', /Repaired: flannel\.ipip had lost its address/],
      [`ip route del ${subnetOf(b)}`, /Repaired: the route to .* was gone/],
    ] as const) {
      await a.output(what.split(' '))
      await daemons[0]!.line(line)
      await isWhole()
      await talk()
    }
    const gone = subnetOf(c)
    await daemons[2]!.stop()
    rmSync(file(gone))
    await eventually(async () => expect(await routes(a)).toEqual([via(b)]))
    expect(await daemons[0]!.stop()).toBe(0)
    await talk()
    await start(a)
    expect(await routes(a)).toEqual([via(b)])
  })

  it('with DirectRouting routes without a tunnel to hosts on the same link', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    await start(a, { DirectRouting: true })
    await start(b, { DirectRouting: true })
    await eventually(async () => expect(await routes(a)).toEqual([`${subnetOf(b)} via ${b.address} dev eth0`]))
    await reach(a.namespace, tunAddress(b))
  })

  it('refuses a device of another type with its name', async () => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    await host.output('ip link add flannel.ipip type bridge'.split(' '))
    const daemon = begin(host)
    await daemon.line(/flannel\.ipip isn't an ipip mode device, please remove device and try again; .*ip link del/)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
  })
})

it('is refused if the kernel has no ipip', async ({ skip }) => {
  const { code } = await execute('unshare --net ip link add probe type ipip local 127.0.0.1'.split(' '))
  skip(code === 0, 'this kernel has ipip')
  lab = await createLab({ hosts: 1 })
  const daemon = begin(lab.hosts[0]!)
  await daemon.line(
    /Error registering network: this kernel has no device of type ipip \(.*\); load its module \(`modprobe ipip`\)/,
  )
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
})
