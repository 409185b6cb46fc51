// families.test.ts - dual-stack and IPv6-only networks with real daemons: containers reach each other over each family, the host has
// flanneld's settings, and a fault of one family does not stop the other.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, execute, output } from '../../lab/command.ts'
import {
  createLab,
  EVENT_MS,
  networkOf,
  WIREGUARD_APART,
  type Daemon,
  type Host,
  type Lab,
  type Pod,
} from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import type { Step } from '../../src/tool/doctor/explain-question.ts'
import type { Report } from '../../src/tool/weft/bench-text.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, weft, weftOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

needs(HOSTS, 'curl', 'ping', 'wg', 'wireguard-go')

let lab: Lab
afterEach(() => lab?.close())

const BOTH = ['ipv4', 'ipv6'] as const
/** Returns the network configuration for these families. */
const network = (families: readonly Family[], backend: object): object => ({
  ...(families.includes('ipv4') ? { Network: '10.5.0.0/16' } : { EnableIPv4: false }),
  ...(families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}),
  Backend: backend,
})

function start(host: Host): Daemon {
  return host.startDaemon({
    args: ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1'],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
}

/** Creates a lab whose hosts all run a daemon with this configuration. */
async function running(families: readonly Family[], backend: object, hosts = 2): Promise<Daemon[]> {
  lab = await createLab({ hosts, families: BOTH })
  mkdirSync(join(lab.folder, 'leases'))
  configure(network(families, backend))
  const daemons = lab.hosts.map(start)
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}
const configure = (config: object): void => writeFileSync(join(lab.folder, 'leases', 'config'), JSON.stringify(config))

async function reachBy(families: readonly Family[], from: Pod, to: Pod): Promise<void> {
  for (const family of families) await reach(from.namespace, addressIn(to, family))
}

/** Checks that a host reports its only peer as reached over exactly these families. */
async function isSeenBy(families: readonly Family[], host: Host, from: Pod, to: Pod): Promise<void> {
  await eventually(async () => {
    const { peers, dataPath } = await statusOf(host)
    expect([dataPath?.families, peers?.answering, peers?.whole]).toEqual([families, 1, 1])
    const sides = Object.entries(peers!.list[0]!.families).flatMap(([family, side]) =>
      side ? [[family, side.state]] : [],
    )
    expect(sides).toEqual(families.map((family) => [family, 'answering']))
  })
  const { code, stdout } = await weft(host, ['status'])
  expect([code, stdout]).toEqual([0, expect.stringMatching(/ (direct|kernel|tunnel) +answering +\d/)])
  const { subnet, ipv6Subnet } = (await statusOf(host)).peers!.list[0]!
  for (const name of [subnet, ipv6Subnet ?? subnet]) {
    const pinged = await weft(host, ['ping', name, '--count', '1'])
    expect([pinged.code, pinged.stdout.match(/1 of 1 answered/g)?.length]).toEqual([0, families.length])
  }
  for (const family of families) expect((await explained(host, family, from, to)).stopped).toEqual([])
  expect(await doctor(host)).toMatchObject({ code: 0, names: [] })
}

const addressIn = (pod: Pod, family: Family): string => (family === 'ipv4' ? pod.address : pod.ipv6) ?? ''
async function explained(host: Host, family: Family, from: Pod, to: Pod) {
  const { code, stdout } = await weft(host, ['explain', addressIn(from, family), addressIn(to, family), '--json'])
  const { steps } = JSON.parse(stdout) as { steps: Step[] }
  return { code, stopped: steps.filter(({ passes }) => passes === false).map(({ step }) => step) }
}

const KINDS: readonly (readonly [
  name: string,
  backend: object,
  /** The MTU per set of families that the backend carries in the lab. */
  mtu: Readonly<Partial<Record<'both' | 'ipv6', number>>>,
])[] = [
  ['udp', { Type: 'udp' }, { both: 1452, ipv6: 1452 }],
  ['udp over IPv6', { Type: 'udp', Underlay: 'ipv6' }, { both: 1452 }],
  ['host-gw', { Type: 'host-gw' }, { both: 1500, ipv6: 1500 }],
  ['vxlan by the kernel', { Type: 'vxlan', DataPath: 'kernel' }, { both: 1430, ipv6: 1430 }],
  ['vxlan with direct routing', { Type: 'vxlan', DataPath: 'kernel', DirectRouting: true }, { both: 1430, ipv6: 1430 }],
  ['vxlan by weftd', { Type: 'vxlan', DataPath: 'userspace' }, { both: 1430, ipv6: 1430 }],
  ['vxlan by weftd with direct routing', { Type: 'vxlan', DataPath: 'userspace', DirectRouting: true }, { both: 1430 }],
  ['wireguard by the kernel', { Type: 'wireguard', DataPath: 'kernel' }, { both: 1420, ipv6: 1420 }],
  ['wireguard by the kernel, one device', { Type: 'wireguard', DataPath: 'kernel', Mode: 'auto' }, { both: 1420 }],
  ['wireguard by weftd', { Type: 'wireguard', DataPath: 'userspace' }, { both: 1420, ipv6: 1420 }],
  [
    'wireguard by weftd, one device',
    { Type: 'wireguard', DataPath: 'userspace', Mode: 'auto' },
    { both: 1420, ipv6: 1420 },
  ],
  ['wireguard by weftd over IPv6', { Type: 'wireguard', DataPath: 'userspace', Mode: 'ipv6' }, { both: 1420 }],
]
const FAMILIES_OF = { both: BOTH, ipv6: ['ipv6'] } as const

describe.each(KINDS)('%s', (_name, backend, mtus) => {
  // All other test files cover IPv4 alone.
  const known = (['both', 'ipv6'] as const).filter((which) => mtus[which])
  it.each(known)('carries %s between containers', async (which) => {
    const families = FAMILIES_OF[which]
    await running(families, backend)
    const [a, b] = lab.hosts as [Host, Host]
    const env = a.subnetEnv()
    expect(Object.keys(env)).toEqual([
      ...(which === 'ipv6' ? [] : ['FLANNEL_NETWORK', 'FLANNEL_SUBNET']),
      'FLANNEL_IPV6_NETWORK',
      'FLANNEL_IPV6_SUBNET',
      'FLANNEL_MTU',
      'FLANNEL_IPMASQ',
    ])
    expect(env['FLANNEL_MTU']).toBe(String(mtus[which]))
    const [from, to] = [await a.startPod(), await b.startPod()]
    await reachBy(families, from, to)
    await reachBy(families, to, from)
    // The settings of a disabled family stay as they are.
    for (const [flag, router] of [
      ['-4', '192.168.77.254'],
      ['-6', 'fd77::fe'],
    ] as const)
      expect(await a.output(['ip', flag, 'route', 'show', 'default'])).toMatch(
        new RegExp(`^default via ${router} dev eth0 `),
      )
    // Packets of the size that subnet.env names pass unfragmented.
    for (const family of families) {
      const [headers, address] = family === 'ipv4' ? [28, to.address] : [48, to.ipv6 ?? '']
      const size = String((mtus[which] ?? 0) - headers)
      await from.output(['ping', '-c', '1', '-W', String(EVENT_MS / 1000), '-M', 'do', '-s', size, address])
    }
    await isSeenBy(families, a, from, to)
  })
})

it("has flanneld's devices, entries and routes for both families", async () => {
  await running(BOTH, { Type: 'vxlan', DataPath: 'kernel' })
  const [a, b] = lab.hosts as [Host, Host]
  const subnet = b.subnetEnv()['FLANNEL_IPV6_SUBNET']!.replace('::1/64', '::')
  await eventually(async () => {
    const routes = await a.output(['ip', '-6', 'route', 'show', 'dev', 'flannel-v6.1'])
    expect(routes).toMatch(new RegExp(`^${subnet}/64 via ${subnet} .*onlink`, 'm'))
  })
  const link = await a.output(['ip', '-d', 'link', 'show', 'dev', 'flannel-v6.1'])
  expect(link).toMatch(/vxlan id 1 local fd77::1 dev eth0 .*dstport 8472 nolearning/)
  expect(link).toMatch(/mtu 1430/)
  expect(await a.output(['ip', 'link', 'show', 'dev', 'flannel.1'])).toMatch(/mtu 1450/)
  const mac = (await b.output(['cat', '/sys/class/net/flannel-v6.1/address'])).trim()
  expect(await a.output(['ip', '-6', 'neigh', 'show', 'dev', 'flannel-v6.1'])).toMatch(
    new RegExp(`^${subnet} lladdr ${mac} PERMANENT`, 'm'),
  )
  expect(await a.output(['bridge', 'fdb', 'show', 'dev', 'flannel-v6.1'])).toMatch(
    new RegExp(`^${mac} dst fd77::2`, 'm'),
  )
  const { dataPath } = await statusOf(a)
  expect(dataPath).toMatchObject({ device: 'flannel.1', devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' } })
  expect((await weft(a, ['status'])).stdout).toContain('vxlan by flannel.1 and flannel-v6.1, the kernel, MTU 1430')
  const key = readdirSync(join(lab.folder, 'leases', 'subnets')).find((name) => name.endsWith(`&${subnet}-64`)) ?? ''
  expect(JSON.parse(readFileSync(join(lab.folder, 'leases', 'subnets', key), 'utf8'))).toMatchObject({
    PublicIP: b.address,
    PublicIPv6: 'fd77::2',
    BackendType: 'vxlan',
    BackendV6Data: { VNI: 1, VtepMAC: mac },
  })
})

/** Returns the answer of /readyz, and the trouble in the status. */
async function readiness({ namespace, statusSocket }: Host): Promise<readonly [ready: number, trouble: string | null]> {
  const ask = async (path: string, ...how: string[]): Promise<string> =>
    output([
      'ip',
      'netns',
      'exec',
      namespace,
      'curl',
      '-s',
      ...how,
      '--unix-socket',
      statusSocket,
      `http://weftd/${path}`,
    ])
  const ready = await ask('readyz', '-o', '/dev/null', '-w', '%{http_code}')
  const { trouble } = JSON.parse(await ask('status.json')) as { trouble: string | null }
  return [Number(ready), trouble]
}

const KINDS_WITH_A_FAULT: readonly (readonly [name: string, backend: object, devices: readonly string[]])[] = [
  ['host-gw', { Type: 'host-gw' }, []],
  ['udp', { Type: 'udp' }, ['flannel0']],
  ['vxlan by the kernel', { Type: 'vxlan', DataPath: 'kernel' }, ['flannel.1', 'flannel-v6.1']],
  ['vxlan by weftd', { Type: 'vxlan', DataPath: 'userspace' }, ['flannel.1', 'flannel-v6.1']],
  ['wireguard by weftd', { Type: 'wireguard', DataPath: 'userspace' }, ['flannel-wg', 'flannel-wg-v6']],
  ['wireguard by weftd, one device', { Type: 'wireguard', DataPath: 'userspace', Mode: 'auto' }, ['flannel-wg']],
  ['wireguard by the kernel, one device', { Type: 'wireguard', DataPath: 'kernel', Mode: 'auto' }, ['flannel-wg']],
]
describe.each(KINDS_WITH_A_FAULT)('%s, a fault of IPv6', (_name, backend, [device4, device6]) => {
  it('leaves IPv4 intact and is repaired: no IPv4 packet is lost, and peers learn the new address', async () => {
    const daemons = await running(BOTH, backend)
    const [a, b] = lab.hosts as [Host, Host]
    const [from, to] = [await a.startPod(), await b.startPod()]
    await reachBy(BOTH, from, to)
    const number = async (): Promise<string> =>
      device4 === undefined ? '' : output(['ip', '-n', a.namespace, '-o', 'link', 'show', 'dev', device4])
    const before = await number()
    const pings = pinging(from, to)
    if (device6 !== undefined) {
      await a.output(['ip', 'link', 'del', device6])
      await daemons[0]!.line(/Repaired: flannel-v6\.1 was gone|IPv6 is carried again/)
      await reachBy(['ipv6'], from, to)
    }
    await a.output(['ip', 'address', 'add', 'fd77::a1/64', 'dev', 'eth0', 'nodad'])
    await a.output(['ip', 'address', 'del', 'fd77::1/64', 'dev', 'eth0'])
    await daemons[0]!.line(/the address of eth0 changed from fd77::1 to fd77::a1$/)
    await eventually(() => expect(publicAddresses()).toContainEqual([a.address, 'fd77::a1']))
    await reachBy(['ipv6'], to, from)
    expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
    expect(await number()).toBe(before)
    expect(daemons.flatMap(({ lines }) => lines).filter((line) => line.includes('The data path stopped'))).toEqual([])
    await eventually(async () => expect(await readiness(a)).toEqual([200, null]))
  })
})

/** Returns the public addresses in each lease. */
function publicAddresses(): (string | null)[][] {
  const folder = join(lab.folder, 'leases', 'subnets')
  return readdirSync(folder).map((name) => {
    const { PublicIP, PublicIPv6 } = JSON.parse(readFileSync(join(folder, name), 'utf8')) as Record<string, string>
    return [PublicIP ?? null, PublicIPv6 ?? null]
  })
}

it('publishes another IPv4 address with udp over IPv6, and loses no packet', async () => {
  const [daemon] = await running(BOTH, { Type: 'udp', Underlay: 'ipv6' })
  const [a, b] = lab.hosts as [Host, Host]
  const [from, to] = [await a.startPod(), await b.startPod()]
  await reachBy(BOTH, from, to)
  const pings = pinging(from, to)
  await a.output(['sysctl', '-qw', 'net.ipv4.conf.eth0.promote_secondaries=1'])
  await a.output(['ip', 'address', 'add', '192.168.77.99/24', 'dev', 'eth0'])
  await a.output(['ip', 'address', 'del', `${a.address}/24`, 'dev', 'eth0'])
  await a.output(['ip', 'route', 'replace', 'default', 'via', '192.168.77.254'])
  await daemon!.line(
    /Publishing a change to the peers: the address of eth0 changed from 192\.168\.77\.1 to 192\.168\.77\.99$/,
  )
  await eventually(() => expect(publicAddresses()).toContainEqual(['192.168.77.99', 'fd77::1']))
  expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
  expect(daemon!.lines.filter((line) => line.includes('The data path stopped'))).toEqual([])
  await reachBy(BOTH, to, from)
})

/** Reasons why a family cannot be used: one command creates the obstacle, one removes it. */
const IN_THE_WAY: readonly (readonly [family: string, backend: object, begin: string, end: string, why: RegExp])[] = [
  [
    'IPv6',
    { Type: 'vxlan', DataPath: 'kernel' },
    'echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6',
    'for where in default all; do echo 0 > /proc/sys/net/ipv6/conf/$where/disable_ipv6; done',
    /^IPv6 is not carried: .*flannel-v6\.1/,
  ],
  [
    'IPv6',
    { Type: 'udp' },
    'ip route add fd00:5::/48 dev lo',
    'ip route del fd00:5::/48 dev lo',
    /^IPv6 is not carried: fd00:5::\/48 is already routed to lo/,
  ],
  [
    'IPv6',
    { Type: 'vxlan', DataPath: 'userspace' },
    'ip route add fd00:5::/48 dev lo',
    'ip route del fd00:5::/48 dev lo',
    /^IPv6 is not carried: fd00:5::\/48 is already routed to lo/,
  ],
  [
    'IPv4',
    { Type: 'wireguard', DataPath: 'userspace' },
    'ip route add 10.5.0.0/16 dev lo',
    'ip route del 10.5.0.0/16 dev lo',
    /^IPv4 is not carried: 10\.5\.0\.0\/16 is already routed to lo/,
  ],
]
it.each(IN_THE_WAY)(
  'carries the other family while %s is unusable, logs that, and carries both as soon as it is usable',
  async (family, backend, begin, end, why) => {
    const [carried, lacking] = family === 'IPv4' ? (['ipv6', 'ipv4'] as const) : (['ipv4', 'ipv6'] as const)
    lab = await createLab({ hosts: 2, families: BOTH })
    mkdirSync(join(lab.folder, 'leases'))
    configure(network(BOTH, backend))
    const [a, b] = lab.hosts as [Host, Host]
    await a.output(['sh', '-c', begin])
    const daemons = [a, b].map(start)
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const to = await b.startPod()
    await reach(a.namespace, (carried === 'ipv4' ? to.address : to.ipv6) ?? '')
    expect(await readiness(a)).toEqual([503, expect.stringMatching(why)])
    expect((await readiness(b))[0]).toBe(200)
    expect(await doctor(a)).toMatchObject({ code: 3, names: expect.arrayContaining(['family-down']) })
    const { code, stdout } = await weft(a, ['ping', (await statusOf(a)).peers!.list[0]!.subnet, '--count', '1'])
    expect([code, stdout.match(/(IPv\d): 1 of 1 answered/)?.[1]]).toEqual([3, family === 'IPv4' ? 'IPv6' : 'IPv4'])
    await a.output(['sh', '-c', end])
    await daemons[0]!.line(new RegExp(`${family} is carried again`))
    await reach(a.namespace, (lacking === 'ipv4' ? to.address : to.ipv6) ?? '')
    await eventually(async () => expect(await readiness(a)).toEqual([200, null]))
    expect(daemons[0]!.lines.filter((line) => line.includes('The data path stopped'))).toEqual([])
  },
)

it('a network is switched to both families node by node, and each node keeps its IPv4 subnet and its peers', async () => {
  const backend = { Type: 'udp' }
  const daemons = await running(['ipv4'], backend, 3)
  const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
  const subnets = lab.hosts.map((host) => host.subnetEnv()['FLANNEL_SUBNET'])
  configure(network(BOTH, backend))
  const all = async (): Promise<void> => {
    for (const from of pods) for (const to of pods) if (from !== to) await reachBy(['ipv4'], from, to)
  }
  for (const [at, host] of lab.hosts.entries()) {
    // The first daemon is stopped first; the others hand over while they run.
    const before = daemons[at]!
    if (at === 0) await before.stop()
    const again = start(host)
    daemons[at] = again
    await again.line(/flannel is ready/)
    await ended(before.process)
    expect(before.lines.filter((line) => /Lease has been revoked|is not used/.test(line))).toEqual([])
    await all()
  }
  expect(lab.hosts.map((host) => host.subnetEnv()['FLANNEL_SUBNET'])).toEqual(subnets)
  for (const from of pods) {
    // A container that started before the switch has IPv4 only; its host has both families.
    const host = lab.hosts[pods.indexOf(from)]!
    for (const other of lab.hosts)
      if (other !== host) await reach(host.namespace, other.subnetEnv()['FLANNEL_IPV6_SUBNET']!.replace('::1/64', '::'))
  }
  // And back: the device that was handed over has no IPv6 configuration any more.
  configure(network(['ipv4'], backend))
  const [before, last] = [daemons[2]!, lab.hosts[2]!]
  await start(last).line(/flannel is ready/)
  await ended(before.process)
  expect(before.lines.filter((line) => line.includes('is not used'))).toEqual([])
  expect(await last.output('ip -6 -o address show dev flannel0 scope global'.split(' '))).toBe('')
  expect(await last.output('ip -6 route show dev flannel0 proto boot'.split(' '))).toBe('')
  await all()
})

describe('on dual-stack hosts', () => {
  let pods: readonly [Pod, Pod]
  /** The daemon of the first host. */
  let daemon: Daemon
  /** Starts two dual-stack hosts, and waits until the first knows that the other answers over both families. */
  async function both(dataPath = 'kernel'): Promise<readonly [Host, Host]> {
    ;[daemon] = (await running(BOTH, { Type: 'vxlan', DataPath: dataPath })) as [Daemon]
    const [a, b] = lab.hosts as [Host, Host]
    pods = [await a.startPod(), await b.startPod()]
    for (const host of [a, b]) await isWell(host)
    return [a, b]
  }
  const isWell = (host: Host): Promise<void> =>
    eventually(async () => expect((await statusOf(host)).peers).toMatchObject({ answering: 1, whole: 1 }))

  const BROKEN = [
    ['ipv6', 'kernel', 'IPv6', 'ip6tables'],
    ['ipv4', 'kernel', 'IPv4', 'iptables'],
    ['ipv6', 'userspace', 'IPv6', 'ip6tables'],
    ['ipv4', 'userspace', 'IPv4', 'iptables'],
  ] as const
  it.each(BROKEN)('weft reports the broken family: %s with the %s data path', async (family, dataPath, name, tool) => {
    const [a, b] = await both(dataPath)
    const other = BOTH.find((each) => each !== family)
    const rule = ['INPUT', '-p', 'udp', '--dport', '8472', '-j', 'DROP']
    await b.output([tool, '-I', ...rule])
    await eventually(async () => {
      const { peers } = await statusOf(a)
      expect([peers?.answering, peers?.whole]).toEqual([0, 0])
      const { state, families } = peers!.list[0]!
      expect([state, families[other!]!.state, families[family]!.state]).toEqual([
        'programmed',
        'answering',
        'programmed',
      ])
    })
    const shown = await weft(a, ['peers'])
    expect([shown.code, shown.stdout]).toEqual([
      3,
      expect.stringMatching(new RegExp(` ${name} silent +\\S+ ms +\\d+% `)),
    ])
    const { subnet } = (await statusOf(a)).peers!.list[0]!
    const pinged = await Promise.all(
      ['', other!, family].map((by) => weft(a, ['ping', subnet, '--count', '1', '--family', by])),
    )
    expect(pinged.map(({ code }) => code)).toEqual([3, 0, 3])
    expect(pinged[0]!.stdout).toContain(`${name}: 0 of 1 answered (100% lost)`)
    expect((await explained(a, family, ...pods)).stopped).toEqual(['peer'])
    expect((await explained(a, other!, ...pods)).stopped).toEqual([])
    expect(await doctor(a)).toMatchObject({
      code: 3,
      names: ['family-broken'],
      details: [expect.stringMatching(new RegExp(`: over ${name} it does not answer$`))],
    })
    expect((await doctor(b)).names).toEqual(['port-dropped', 'family-broken'])
    await b.output([tool, '-D', ...rule])
    for (const host of [a, b]) await isWell(host)
    // Probes that were lost a moment ago are still reported.
    expect((await doctor(a)).names.filter((found) => found !== 'peer-lossy')).toEqual([])
  })

  it('weft bench measures each family, outside and inside the tunnel', async () => {
    const [a, b] = await both()
    b.spawn(weftOf(b, ['bench', '--listen']))
    const words = ['bench', b.address, '--seconds', '0.05', '--pairs', '1', '--streams', '2']
    const measured = async () => {
      const { code, stdout, stderr } = await weft(a, [...words, '--json'])
      const { ipv4, ipv6 } = (
        JSON.parse(stdout) as { families: Record<Family, (Report & { unreached?: string }) | null> }
      ).families
      return { code, stderr, ipv4, ipv6 }
    }
    const first = await eventually(async () => {
      const found = await measured()
      expect(found.stderr).toBe('')
      return found
    })
    expect(first).toMatchObject({
      code: 0,
      ipv4: { outside: '192.168.77.2', peer: subnetOf(b), isBroken: false, udp: { datagramBytes: 1402 } },
      ipv6: { outside: 'fd77::2', isBroken: false, udp: { datagramBytes: 1382 } },
    })
    const base = networkOf(b.subnetEnv()['FLANNEL_IPV6_SUBNET']!)
    expect([first.ipv6!.peer, first.ipv6!.inside, first.ipv6!.inUse.there!.subnet]).toEqual([
      base,
      base.replace('/64', ''),
      base,
    ])
    for (const { tcp, udp, roundTripMs } of [first.ipv4!, first.ipv6!])
      for (const path of ['outside', 'inside'] as const) {
        expect(Math.min(tcp[path]!, roundTripMs[path]!)).toBeGreaterThan(0)
        expect(udp[path].lost).toBeLessThan(udp[path].sent)
      }
    // A fault of one family does not change the measurements of the other.
    const rule = ['INPUT', '-i', 'flannel-v6.1', '-p', 'tcp', '--dport', '8286', '-j', 'REJECT']
    await b.output(['ip6tables', '-I', ...rule])
    const half = await measured()
    expect([half.code, half.ipv4?.isBroken]).toEqual([3, false])
    expect(half.ipv6?.unreached).toMatch(/is reached outside but not inside.*a ping through the data path is answered/)
    await b.output([
      'ip6tables',
      '-R',
      'INPUT',
      '1',
      ...rule.slice(1).map((word) => word.replace('flannel-v6.1', 'eth0')),
    ])
    const outside = await measured()
    expect([outside.code, outside.ipv4?.isBroken, outside.ipv6]).toEqual([1, false, null])
    expect(outside.stderr).toMatch(/^weft bench: IPv6: TCP port 8286 of fd77::2 is reached inside but not outside/)
  })

  it.each(['kernel', 'userspace'])(
    'weft names what this host lacks in one family, with the %s data path',
    async (dataPath) => {
      const [a] = await both(dataPath)
      await a.output(['ip', '-6', 'route', 'del', 'default'])
      expect(await doctor(a)).toMatchObject({ code: 0, names: ['no-default-route'], details: ['IPv6'] })
      await a.output(['ip', '-6', 'route', 'add', 'default', 'via', 'fd77::fe'])
      await a.output(['sysctl', '-qw', 'net.ipv6.conf.all.forwarding=0'])
      expect(await doctor(a)).toMatchObject({ code: 3, names: ['forwarding-off-ipv6'] })
      expect((await explained(a, 'ipv6', ...pods)).stopped).toEqual(['forwarding'])
      expect((await explained(a, 'ipv4', ...pods)).stopped).toEqual([])
      await a.output(['sysctl', '-qw', 'net.ipv6.conf.all.forwarding=1'])
      expect((await doctor(a)).names).toEqual([])
      // Only the address is removed. The data path of the family stays, and works again as soon as the address is back.
      await a.output(['ip', 'address', 'del', 'fd77::1/64', 'dev', 'eth0'])
      await daemon.line(/eth0 has lost its address fd77::1: no IPv6 packets pass between/)
      const { state, trouble } = await statusOf(a)
      expect([state, trouble]).toEqual(['impaired', expect.stringContaining('eth0 has lost its address fd77::1')])
      const { code, names, details } = await doctor(a)
      expect([code, names[0], details[0]]).toEqual([3, 'address-gone', 'IPv6: eth0 has lost its address fd77::1'])
      await a.output(['ip', 'address', 'add', 'fd77::1/64', 'dev', 'eth0', 'nodad'])
      await daemon.line(/The external interface has an IPv6 address again/)
      await reachBy(BOTH, ...pods)
      // By then weftd has probed the silent peer again.
      await eventually(async () => expect((await statusOf(a)).trouble).toBe(null))
      expect(daemon.lines.filter((line) => /is not carried|The data path stopped/.test(line))).toEqual([])
    },
  )

  it('weft does not report the family that ipip never carries', async ({ skip }) => {
    const { code: refused, stderr } = await execute(
      'unshare --net ip link add probe type ipip local 127.0.0.1'.split(' '),
    )
    skip(refused !== 0, `no ipip in the kernel: ${stderr.trim()}; npm run test:vm has one`)
    await running(BOTH, { Type: 'ipip' })
    const [a, b] = lab.hosts as [Host, Host]
    const [from, to] = [await a.startPod(), await b.startPod()]
    await eventually(async () => {
      const { peers, dataPath } = await statusOf(a)
      expect([dataPath?.families, peers?.answering, peers?.whole]).toEqual([['ipv4'], 1, 1])
      expect(peers!.list[0]!.families).toMatchObject({ ipv4: { state: 'answering', way: 'kernel' }, ipv6: null })
    })
    expect(await doctor(a)).toMatchObject({ code: 0, names: ['family-not-carried'], details: ['fd00:5::/48'] })
    expect((await explained(a, 'ipv4', from, to)).stopped).toEqual([])
    expect((await explained(a, 'ipv6', from, to)).stopped).toContain('data path')
  })
})
