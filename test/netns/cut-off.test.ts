// cut-off.test.ts - faults that cut a host's containers off from other nodes although weftd works: the containers lose all packets, and
// `weft doctor` and `weft explain` name the cause.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Finished } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Step } from '../../src/tool/doctor/explain-question.ts'
import type { FindingName } from '../../src/tool/doctor/findings.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

const lacks = needs(HOSTS, 'iptables', 'ping')

let lab: Lab
let first: Host
let second: Host
let daemon: Daemon
let here: Pod
let there: Pod

beforeAll(async () => {
  if (lacks) return
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  ;[first, second] = lab.hosts as [Host, Host]
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
  const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases, '--probe-interval', '1'] }))
  daemon = daemons[0]!
  await Promise.all(daemons.map((each) => each.line(/flannel is ready/)))
  ;[here, there] = await Promise.all([first.startPod(), second.startPod()])
  // A process in the namespace of the container shows weft doctor which gateways the container uses.
  here.spawn(['sleep', 'infinity'])
  await areWell()
})
afterAll(() => lab?.close())

const addressOf = (pod: Pod, family: Family): string => (family === 'ipv4' ? pod.address : pod.ipv6) ?? ''
type Family = 'ipv4' | 'ipv6'

async function areWell(): Promise<void> {
  for (const family of ['ipv4', 'ipv6'] as const) await reach(here.namespace, addressOf(there, family))
  for (const host of [first, second])
    await eventually(async () => expect((await statusOf(host)).peers).toMatchObject({ stored: 1, answering: 1 }))
}

/** Returns the steps at which the packet and its answer stop, such as `out policy`. */
async function stopped(family: Family): Promise<{ readonly code: number | null; readonly at: string[] }> {
  const words = ['explain', addressOf(here, family), addressOf(there, family), '--json']
  const { code, stdout } = await weft(first, words)
  const way = JSON.parse(stdout) as { direction: string; steps: Step[]; answer: { direction: string; steps: Step[] } }
  const at = [way, way.answer].flatMap(({ direction, steps }) =>
    steps.filter(({ passes }) => passes === false).map(({ step }) => `${direction} ${step}`),
  )
  return { code, at }
}

interface Fault {
  readonly what: string
  readonly family: Family
  readonly finds: readonly FindingName[]
  readonly detail: RegExp
  readonly stops: readonly string[]
  /** Commands that make the fault and repair it. GATE, GATE6, OWN, OWN6, PEER and POD stand for addresses. */
  readonly breaks: string
  readonly repairs: string
}

const FAULTS: readonly Fault[] = [
  {
    what: 'an IPsec policy that blocks all forwarded packets',
    family: 'ipv4',
    finds: ['ipsec-blocked'],
    detail:
      /^packets from 10\.5\.\S+ to 10\.5\.\S+: the IPsec policy "src 0\.0\.0\.0\/0 dst 0\.0\.0\.0\/0 dir fwd action block"$/,
    stops: ['out policy', 'in policy'],
    breaks: 'ip xfrm policy add dir fwd action block',
    repairs: 'ip xfrm policy delete src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd',
  },
  {
    what: 'an IPsec policy that blocks packets from the tunnel',
    family: 'ipv6',
    finds: ['ipsec-blocked'],
    detail:
      /^packets from fd00:5\S+ to fd00:5\S+: the IPsec policy "src fd00:5::\/48 dst fd00:5\S+\/64 dir fwd action block"$/,
    stops: ['in policy'],
    breaks: 'ip -6 xfrm policy add src fd00:5::/48 dst OWN6 dir fwd action block',
    repairs: 'ip -6 xfrm policy delete src fd00:5::/48 dst OWN6 dir fwd',
  },
  {
    what: 'an IPsec policy that blocks packets into the tunnel',
    family: 'ipv4',
    finds: ['ipsec-blocked'],
    detail: /the IPsec policy "src 10\.5\.\S+\/32 dst 10\.5\.0\.0\/16 dir out action block"$/,
    stops: ['out policy'],
    breaks: 'ip xfrm policy add src POD dst 10.5.0.0/16 dir out action block',
    repairs: 'ip xfrm policy delete src POD dst 10.5.0.0/16 dir out',
  },
  {
    what: 'an IPsec policy that demands keys, which no program makes',
    family: 'ipv4',
    finds: ['ipsec-blocked'],
    detail: /dir fwd tmpl src 192\.168\.77\.2 dst 192\.168\.77\.1", for which this host has no keys/,
    stops: ['in policy'],
    breaks:
      'ip xfrm policy add src 10.5.0.0/16 dst OWN dir fwd tmpl src 192.168.77.2 dst 192.168.77.1 proto esp mode tunnel',
    repairs: 'ip xfrm policy delete src 10.5.0.0/16 dst OWN dir fwd',
  },
  {
    what: 'a default IPsec policy that blocks forwarded packets',
    family: 'ipv6',
    finds: ['ipsec-blocked'],
    detail: /: the default IPsec policy for fwd$/,
    stops: ['out policy', 'in policy'],
    breaks: 'ip xfrm policy setdefault fwd block',
    repairs: 'ip xfrm policy setdefault fwd accept',
  },
  {
    what: 'a bridge that lost its IPv4 address',
    family: 'ipv4',
    finds: ['bridge-unaddressed'],
    detail: /^cni0 does not have the address 10\.5\.\S+\.1, which its containers use as gateway$/,
    stops: ['out gateway', 'in route'],
    breaks: 'ip address delete GATE dev cni0',
    repairs: 'ip address add GATE dev cni0',
  },
  {
    what: 'a bridge that got another IPv4 address of the subnet',
    family: 'ipv4',
    finds: ['bridge-unaddressed'],
    detail: /^cni0 does not have the address 10\.5\.\S+\.1, which its containers use as gateway$/,
    stops: ['out gateway'],
    breaks: 'ip address add OTHER dev cni0; ip address delete GATE dev cni0; ip address replace OTHER dev cni0',
    repairs: 'ip address delete OTHER dev cni0; ip address replace GATE dev cni0',
  },
  {
    what: 'a bridge that lost its IPv6 address',
    family: 'ipv6',
    finds: ['bridge-unaddressed'],
    detail: /^cni0 does not have the address fd00:5\S+::1, which its containers use as gateway$/,
    stops: ['out gateway', 'in route'],
    breaks: 'ip address delete GATE6 dev cni0',
    repairs: 'ip address add GATE6 dev cni0 nodad',
  },
  {
    what: 'a bridge on which a setting disables IPv6',
    family: 'ipv6',
    finds: ['ipv6-disabled'],
    detail: /^net\.ipv6\.conf\.cni0\.disable_ipv6 is 1: cni0 does not have the address fd00:5\S+::1,/,
    stops: ['out gateway', 'in route'],
    breaks: 'echo 1 > /proc/sys/net/ipv6/conf/cni0/disable_ipv6',
    repairs: 'echo 0 > /proc/sys/net/ipv6/conf/cni0/disable_ipv6; ip address add GATE6 dev cni0 nodad',
  },
  {
    what: 'a firewall that drops only packets from the tunnel',
    family: 'ipv4',
    finds: ['forward-dropped'],
    detail: /^-A FORWARD -i flannel0 -j DROP$/,
    stops: ['in firewall'],
    breaks: 'iptables -I FORWARD -i flannel0 -j DROP',
    repairs: 'iptables -D FORWARD -i flannel0 -j DROP',
  },
  {
    what: 'a rule that diverts packets of containers, and a strict rp_filter that then drops the packets from the peer',
    family: 'ipv4',
    finds: ['policy-route'],
    detail: /^10\.5\.\S+ \(from cni0\) goes to eth0, by the table 77 and the rule "77: from all iif cni0 lookup 77"$/,
    stops: ['out route', 'in route'],
    breaks:
      'echo 1 > /proc/sys/net/ipv4/conf/flannel0/rp_filter; ip route add PEER dev eth0 table 77; ip rule add pref 77 iif cni0 lookup 77',
    repairs: 'ip rule delete pref 77; ip route flush table 77; echo 0 > /proc/sys/net/ipv4/conf/flannel0/rp_filter',
  },
]

it.for(FAULTS)('finds $what', async ({ family, finds, detail, stops, breaks, repairs }, { skip }) => {
  const { FLANNEL_SUBNET: gate = '', FLANNEL_IPV6_SUBNET: gate6 = '' } = first.subnetEnv()
  const shell = (script: string): Promise<Finished> =>
    first.run([
      'sh',
      '-ec',
      script
        .replaceAll('GATE6', gate6)
        .replaceAll('OWN6', gate6.replace('::1/', '::/'))
        .replaceAll('GATE', gate)
        .replaceAll('OTHER', gate.replace('.1/', '.77/'))
        .replaceAll('OWN', subnetOf(first))
        .replaceAll('PEER', subnetOf(second))
        .replaceAll('POD', here.address),
    ])
  const broken = await shell(breaks)
  const isLacking = broken.code !== 0 && breaks.includes('xfrm')
  skip(isLacking, `the kernel or iproute2 lacks IPsec: ${broken.stderr.trim()}`)
  expect(broken).toMatchObject({ code: 0 })
  try {
    // Otherwise the container may send to the link-layer address of the gateway that the container learned earlier.
    await here.output(['ip', 'neigh', 'flush', 'all'])
    const ping = await here.run(['ping', '-n', '-c', '2', '-i', '0.2', '-W', '1', addressOf(there, family)])
    expect(ping.stdout).toContain('100% packet loss')
    await eventually(async () => {
      const { code, names, details } = await doctor(first)
      expect([code, names]).toEqual([3, finds])
      expect(details).toEqual(expect.arrayContaining([expect.stringMatching(detail)]))
    })
    expect(await stopped(family)).toEqual({ code: 3, at: stops })
  } finally {
    expect(await shell(repairs)).toMatchObject({ code: 0 })
  }
  await areWell()
})

it('blames nothing after the repairs, and says the direction of a packet and of its answer', async () => {
  await eventually(async () => expect(await doctor(first)).toMatchObject({ code: 0, names: [] }))
  const { code, stdout } = await weft(first, ['explain', here.address, there.address])
  expect([code, stdout]).toEqual([
    0,
    expect.stringMatching(
      /^a packet from \S+ to \S+ leaves this host\n[^]*\nit would get through\n\na packet from \S+ to \S+ arrives at this host\n[^]*\nit would get through\n$/,
    ),
  ])
})

it('logs once that a policy rule diverts packets of containers, and that the rule is gone', async () => {
  const shell = (script: string): Promise<string> => first.output(['sh', '-ec', script])
  await shell('ip route add default via 192.168.77.254 table 30400; ip rule add pref 30400 iif cni0 lookup 30400')
  try {
    await daemon.line(
      /Packets to other nodes bypass the data path by policy routing rules that others made: from cni0 to eth0 \(such as/,
    )
    const ping = await here.run(['ping', '-n', '-c', '2', '-i', '0.2', '-W', '1', there.address])
    expect(ping.stdout).toContain('100% packet loss')
  } finally {
    await shell('ip rule delete pref 30400; ip route flush table 30400')
  }
  await daemon.line(/Policy routing rules no longer divert packets to other nodes: from cni0 to eth0/)
  await areWell()
})
