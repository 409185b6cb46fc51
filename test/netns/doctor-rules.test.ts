// doctor-rules.test.ts - containers lose packets by one rule of the firewall, in tables beside the table filter of iptables. While the hosts
// reach each other, weft doctor and weft explain name the rule, over IPv4 and IPv6.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { execute } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { ping, reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import type { FindingName } from '../../src/tool/doctor/findings.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

const lacks = needs(HOSTS, 'iptables', 'nft')

let lab: Lab
let first: Host
let daemons: Daemon[]
let here: Pod
let neighbour: Pod
let there: Pod

/** Resolves when the host has received answers of the other host. */
const isWell = (host: Host): Promise<void> =>
  eventually(async () => expect((await statusOf(host)).peers).toMatchObject({ stored: 1, answering: 1 }))

beforeAll(async () => {
  if (lacks) return
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(
    join(leases, 'config'),
    JSON.stringify({ Network: '10.5.0.0/16', EnableIPv6: true, IPv6Network: 'fd00:5::/48' }),
  )
  daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases, '--probe-interval', '1'] }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const [one, two] = lab.hosts as [Host, Host]
  first = one
  here = await one.startPod()
  neighbour = await one.startPod()
  there = await two.startPod()
  for (const host of lab.hosts) await isWell(host)
})
afterAll(() => lab?.close())

const inShell = (script: string): Promise<string> => first.output(['sh', '-c', script])
const addressIn = (pod: Pod, family: Family): string => (family === 'ipv4' ? pod.address : pod.ipv6) ?? ''

interface Rule {
  /** The commands that add the rule, and those that remove it. */
  readonly add: string
  readonly remove: string
  readonly family?: Family
  /** The direction in which packets are lost: to the peer's container, from it, or to a container of the same host. */
  readonly way?: 'out' | 'in' | 'near'
  readonly finding: FindingName
  /** The rule, as doctor and explain name it. */
  readonly named: RegExp
}

const nftRule = (family: string, head: string, rule: string) => ({
  add: `nft 'table ${family} eyes { chain c { type ${head}; policy accept; ${rule}; }; }'`,
  remove: `nft delete table ${family} eyes`,
})
const tableRule = (rule: string, tool = 'iptables') => ({
  add: `${tool} ${rule}`,
  remove: `${tool} ${rule.replace('-A ', '-D ')}`,
})

const RULES: readonly Rule[] = [
  {
    ...nftRule('bridge', 'filter hook prerouting priority 0', 'ip saddr 10.5.0.0/16 counter drop'),
    finding: 'forward-dropped',
    named: /nft: bridge eyes c: ip saddr 10\.5\.0\.0\/16 counter drop/,
  },
  {
    ...nftRule('bridge', 'filter hook input priority 0', 'ether type ip6 drop'),
    family: 'ipv6',
    finding: 'forward-dropped',
    named: /nft: bridge eyes c: ether type ip6 drop/,
  },
  {
    ...nftRule('bridge', 'filter hook output priority 0', 'ip daddr 10.5.0.0/16 drop'),
    way: 'in',
    finding: 'forward-dropped',
    named: /nft: bridge eyes c: ip daddr 10\.5\.0\.0\/16 drop/,
  },
  {
    ...nftRule('bridge', 'filter hook forward priority 0', 'ip saddr 10.5.0.0/16 drop'),
    way: 'near',
    finding: 'forward-dropped',
    named: /nft: bridge eyes c: ip saddr 10\.5\.0\.0\/16 drop/,
  },
  {
    add: 'ebtables-nft -A INPUT -p IPv4 -j DROP',
    remove: 'ebtables-nft -D INPUT -p IPv4 -j DROP',
    finding: 'forward-dropped',
    named: /nft: bridge filter INPUT: ether type ip counter drop/,
  },
  {
    ...tableRule('-t mangle -A FORWARD -d fd00:5::/48 -i cni0 -j DROP', 'ip6tables'),
    family: 'ipv6',
    finding: 'forward-dropped',
    named: /-t mangle -A FORWARD -d fd00:5::\/48 -i cni0 -j DROP/,
  },
  {
    ...tableRule('-t nat -A PREROUTING -i cni0 -d 10.5.0.0/16 -j DNAT --to-destination 192.0.2.99'),
    finding: 'packets-diverted',
    named: /-t nat -A PREROUTING -d 10\.5\.0\.0\/16 -i cni0 -j DNAT --to-destination 192\.0\.2\.99/,
  },
  {
    ...nftRule(
      'inet',
      'nat hook prerouting priority dstnat',
      'iifname cni0 ip6 daddr fd00:5::/48 dnat ip6 to 2001:db8::99',
    ),
    family: 'ipv6',
    finding: 'packets-diverted',
    named: /nft: inet eyes c: iifname "cni0" ip6 daddr fd00:5::\/48 dnat ip6 to 2001:db8::99/,
  },
  {
    ...tableRule('-t mangle -A PREROUTING -i cni0 -j TTL --ttl-set 1'),
    finding: 'hops-too-few',
    named: /-t mangle -A PREROUTING -i cni0 -j TTL --ttl-set 1/,
  },
  {
    ...tableRule('-t mangle -A PREROUTING -i cni0 -j HL --hl-set 1', 'ip6tables'),
    family: 'ipv6',
    finding: 'hops-too-few',
    named: /ip6tables: -t mangle -A PREROUTING -i cni0 -j HL --hl-set 1/,
  },
  {
    ...nftRule('inet', 'filter hook forward priority 0', 'iifname cni0 ip ttl set 2'),
    finding: 'hops-too-few',
    named: /nft: inet eyes c: iifname "cni0" ip ttl set 2/,
  },
  {
    ...tableRule('-A FORWARD -i cni0 -m u32 --u32 "0>>28=4" -j DROP'),
    add: 'iptables -I FORWARD -i cni0 -m u32 --u32 "0>>28=4" -j DROP',
    finding: 'rule-unjudged',
    named: /-A FORWARD -i cni0 -m u32 --u32 "0x0>>0x1c=0x4" -j DROP \(\d+ packets\)/,
  },
  {
    add: 'iptables -t raw -A PREROUTING -i cni0 -j CT --notrack; iptables -I FORWARD -m conntrack --ctstate UNTRACKED -j DROP',
    remove:
      'iptables -t raw -D PREROUTING -i cni0 -j CT --notrack; iptables -D FORWARD -m conntrack --ctstate UNTRACKED -j DROP',
    finding: 'forward-dropped',
    named: /-A FORWARD -m conntrack --ctstate UNTRACKED -j DROP/,
  },
  {
    ...tableRule('-t mangle -A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP'),
    finding: 'forward-dropped',
    named: /-t mangle -A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP/,
  },
  {
    ...nftRule('inet', 'filter hook forward priority 0', 'ct state vmap { new : accept, established : drop }'),
    family: 'ipv6',
    way: 'in',
    finding: 'forward-dropped',
    named: /nft: inet eyes c: ct state vmap \{ established : drop, new : accept \}/,
  },
  {
    ...nftRule('inet', 'filter hook forward priority 0', 'iifname cni0 ip6 version 6 counter drop'),
    family: 'ipv6',
    finding: 'rule-unjudged',
    named: /nft: inet eyes c: iifname "cni0" ip6 version 6 counter drop \(\d+ packets\)/,
  },
  {
    ...tableRule('-A FORWARD -i cni0 -j NFQUEUE --queue-num 7'),
    add: 'iptables -I FORWARD -i cni0 -j NFQUEUE --queue-num 7',
    finding: 'forward-dropped',
    named: /-A FORWARD -i cni0 -j NFQUEUE --queue-num 7 \(no program reads this queue\)/,
  },
  {
    ...tableRule('-A INPUT -i cni0 -p ipv6-icmp -j DROP', 'ip6tables'),
    add: 'ip6tables -A INPUT -i cni0 -p ipv6-icmp -j DROP; ip -6 neigh flush dev cni0',
    family: 'ipv6',
    way: 'in',
    finding: 'discovery-dropped',
    named: /ip6tables: -A INPUT -i cni0 -p ipv6-icmp -j DROP/,
  },
  {
    add: 'iptables-legacy -t mangle -A PREROUTING -i cni0 -j MARK --set-mark 5; ip route add blackhole default table 99; ip rule add fwmark 5 lookup 99',
    remove:
      'ip rule del fwmark 5; ip route flush table 99; iptables-legacy -t mangle -D PREROUTING -i cni0 -j MARK --set-mark 5',
    finding: 'route-refused',
    named:
      /, because it has the mark 0x5 by the firewall rule iptables-legacy: -t mangle -A PREROUTING -i cni0 -j MARK/,
  },
  {
    add: 'ip route add blackhole default table 98; ip rule add pref 98 iif cni0 ipproto icmp lookup 98',
    remove: 'ip rule del pref 98; ip route flush table 98',
    finding: 'route-refused',
    named: /a blackhole drops the packets, by the rule "98: from all iif cni0 ipproto icmp lookup 98"/,
  },
  {
    add: 'ip -6 rule add pref 98 iif flannel0 ipproto ipv6-icmp prohibit',
    remove: 'ip -6 rule del pref 98',
    family: 'ipv6',
    way: 'in',
    finding: 'route-refused',
    named: /by the rule "98: from all iif flannel0 ipproto ipv6-icmp prohibit", which is for a part/,
  },
]

const LEGACY: Rule = {
  ...tableRule('-t raw -A PREROUTING -s 10.5.0.0/16 -i cni0 -j DROP', 'iptables-legacy'),
  finding: 'forward-dropped',
  named: /iptables-legacy: -t raw -A PREROUTING -s 10\.5\.0\.0\/16 -i cni0 -j DROP/,
}

async function explained(from: Pod, to: Pod, family: Family): Promise<readonly string[]> {
  const { stdout } = await weft(first, ['explain', addressIn(from, family), addressIn(to, family), '--json'])
  const { steps } = JSON.parse(stdout) as { steps: { passes?: boolean | null; says: string }[] }
  return steps.filter(({ passes }) => passes !== true).map(({ says }) => says)
}

async function checkRule({ add, remove, family = 'ipv4', way = 'out', finding, named }: Rule): Promise<void> {
  const [from, to] = { out: [here, there], in: [there, here], near: [here, neighbour] }[way] as [Pod, Pod]
  await reach(from.namespace, addressIn(to, family))
  await inShell(add)
  try {
    expect(await ping(from.namespace, addressIn(to, family), { count: 2 })).toEqual([])
    expect((await statusOf(first)).state).toBe('working')
    const { names, details } = await doctor(first)
    expect([names, details]).toEqual([[finding], [expect.stringMatching(named)]])
    expect(await explained(from, to, family)).toContainEqual(expect.stringMatching(named))
  } finally {
    await inShell(remove)
  }
  await reach(from.namespace, addressIn(to, family))
}

describe.sequential('a rule by which containers lose all packets', () => {
  it.each(RULES)('is named: $add', checkRule)

  it('is named if only iptables-legacy has it', async ({ skip }) => {
    skip((await execute(['unshare', '--net', 'iptables-legacy', '-L'])).code !== 0, 'no iptables of the legacy kind')
    await checkRule(LEGACY)
  })
  it('is no longer reported after the rule is gone', async () => {
    expect((await doctor(first)).names).toEqual([])
    expect(await explained(here, there, 'ipv4')).toEqual([])
  })
})

it('a rule that hides the address of containers from a peer is a warning', async () => {
  const rule = '-t nat -A POSTROUTING -o flannel0 -j MASQUERADE'
  await inShell(`iptables ${rule}`)
  try {
    await reach(here.namespace, there.address)
    expect(await inShell('iptables-save -c -t nat')).toMatch(
      /^\[[1-9]\d*:\d+\] -A POSTROUTING -o flannel0 -j MASQUERADE$/m,
    )
    const { code, names, details } = await doctor(first)
    expect([code, names, details]).toEqual([0, ['source-changed'], [rule]])
    const { stdout } = await weft(first, ['explain', here.address, there.address])
    expect(stdout).toContain(`gets another source address by ${rule}, so that the other container sees that address`)
  } finally {
    await inShell(`iptables ${rule.replace('-A ', '-D ')}`)
  }
})
