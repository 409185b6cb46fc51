// several.test.ts - several daemons on one host, each with its own network, subnet file and port, as flanneld allows.

import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { answers } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD, 'iptables', 'nft', 'ping')

let lab: Lab | undefined
let etcd: Etcd | undefined
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  lab = etcd = undefined
})

const RED = { prefix: '/red', network: '10.5.0.0/16', port: 8285, device: 'flannel0' }
const BLUE = { prefix: '/blue', network: '10.6.0.0/16', port: 8286, device: 'flannel1' }
type Colour = typeof RED

const fileOf = (host: Host, { prefix }: Colour): string => join(dirname(host.subnetFile), `${prefix.slice(1)}.env`)
const subnetOf = (host: Host, colour: Colour): string =>
  /^FLANNEL_SUBNET=(.*)\.1\/24$/m.exec(readFileSync(fileOf(host, colour), 'utf8'))![1]!

async function start(host: Host, colour: Colour): Promise<Daemon> {
  const where = [
    '--etcd-endpoints',
    etcd!.endpoint,
    '--etcd-prefix',
    colour.prefix,
    '--subnet-file',
    fileOf(host, colour),
  ]
  const daemon = host.startDaemon({ args: [...where, '--ip-masq', '--iptables-resync', '1'] })
  await daemon.line(/flannel is ready/)
  return daemon
}

/** Adds an address of the subnet to the host, like the address of a container bridge; returns it. */
async function addGateway(host: Host, colour: Colour): Promise<string> {
  const address = `${subnetOf(host, colour)}.1`
  await host.output(['ip', 'address', 'add', `${address}/32`, 'dev', 'lo'])
  return address
}

describe.each(['iptables', 'nftables'])('two networks on each of two hosts, with %s', (kind) => {
  /** Returns the rules of one network, in order. */
  async function rules(host: Host, { network }: Colour): Promise<readonly string[]> {
    const beginning = network.replace('.0.0/16', '.')
    const text = await (kind === 'iptables'
      ? host.output(['iptables-save'])
      : host.output(['nft', '-s', 'list', 'table', 'ip', 'flannel-ipv4']))
    return text.split('\n').filter((line) => line.includes(beginning))
  }

  it('have separate devices, routes, subnet files and rules, and each daemon repairs its own', async () => {
    lab = await createLab({ hosts: 2 })
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    for (const { prefix, network, port } of [RED, BLUE]) {
      const config = { Network: network, EnableNFTables: kind === 'nftables', Backend: { Type: 'udp', Port: port } }
      await etcd.ctl('put', `${prefix}/config`, JSON.stringify(config))
    }
    const first = lab.hosts[0]!
    const red = await Promise.all(lab.hosts.map((host) => start(host, RED)))
    const redAlone = await rules(first, RED)
    expect(redAlone).toHaveLength(5 + 2)
    const blue = await Promise.all(lab.hosts.map((host) => start(host, BLUE)))

    for (const host of lab.hosts) {
      for (const colour of [RED, BLUE]) {
        const { network, device } = colour
        expect(await host.output(['ip', 'route', 'show', 'exact', network])).toContain(`dev ${device} `)
        expect(await host.output(['ip', '-4', '-o', 'address', 'show', device])).toContain(
          `${subnetOf(host, colour)}.0/32`,
        )
      }
    }
    const blueRules = await rules(first, BLUE)
    expect(blueRules).toHaveLength(5 + 2)
    expect(await rules(first, RED)).toEqual(redAlone)

    // Each daemon notices changes to its rules, and leaves the other's rules alone.
    const repaired = /Repaired: (rules of FLANNEL-FWD|the table flannel-ipv4)/
    for (const [daemon, other, colour] of [
      [red[0]!, blue[0]!, RED],
      [blue[0]!, red[0]!, BLUE],
    ] as const) {
      const before = [daemon, other].map(({ lines: all }) => all.filter((line) => repaired.test(line)).length)
      if (kind === 'iptables') {
        await first.output([
          'iptables',
          '-D',
          'FLANNEL-FWD',
          '-s',
          colour.network,
          '-m',
          'comment',
          '--comment',
          'flanneld forward',
          '-j',
          'ACCEPT',
        ])
      } else {
        const list = await first.output(['nft', '-a', 'list', 'chain', 'ip', 'flannel-ipv4', 'forward'])
        const handle = new RegExp(`saddr ${colour.network} accept # handle (\\d+)`).exec(list)![1]!
        await first.output(['nft', 'delete', 'rule', 'ip', 'flannel-ipv4', 'forward', 'handle', handle])
      }
      await daemon.line(repaired)
      expect(await rules(first, RED)).toEqual(redAlone)
      expect(await rules(first, BLUE)).toEqual(blueRules)
      const after = [daemon, other].map(({ lines: all }) => all.filter((line) => repaired.test(line)).length)
      expect(after).toEqual([before[0]! + 1, before[1]!])
    }

    // Both networks must carry traffic, even while the other network's daemon is stopped, and after its restart.
    const gateways = await Promise.all(
      [RED, BLUE].map((colour) => Promise.all(lab!.hosts.map((host) => addGateway(host, colour)))),
    )
    const talk = async (index: number): Promise<void> => {
      await reach(first.namespace, gateways[index]![1]!)
      await answers(first.namespace, gateways[index]![1]!)
    }
    await talk(0)
    await talk(1)
    expect(await red[0]!.stop()).toBe(0)
    await talk(1)
    const again = await start(first, RED)
    expect(subnetOf(first, RED)).toBe(gateways[0]![0]!.replace(/\.1$/, ''))
    await talk(0)
    await talk(1)
    expect(await first.output(['ip', 'route', 'show', 'exact', RED.network])).toContain('dev flannel0 ')
    for (const daemon of [again, ...blue, red[1]!])
      expect(daemon.lines.filter((line) => line.startsWith('E'))).toEqual([])
  })
})

it('a second daemon with the port of the first daemon reports the conflict', async () => {
  lab = await createLab({ hosts: 1 })
  etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  await etcd.ctl('put', '/red/config', JSON.stringify({ Network: RED.network }))
  await etcd.ctl('put', '/blue/config', JSON.stringify({ Network: BLUE.network }))
  const host = lab.hosts[0]!
  await start(host, RED)
  await expect(start(host, BLUE)).rejects.toThrow(
    /UDP port 192\.168\.77\.1:8285 is taken by \S+ \(pid \d+\); stop what holds it/,
  )
})
