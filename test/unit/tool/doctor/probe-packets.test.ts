// probe-packets.test.ts - weft doctor names the rules of this host that drop the probes, and not the peer, which they make look silent.

import { expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import { countPeers } from '../../../../src/report/status.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkFirewall } from '../../../../src/tool/doctor/firewall.ts'
import { readRules } from '../../../../src/tool/doctor/host-rules.ts'
import { checkPeers } from '../../../../src/tool/doctor/peers.ts'
import * as silenceCauses from '../../../../src/tool/doctor/silence-causes.ts'
import { route, silentSide, sound, soundPeer, soundStatus as status } from '../../../support/facts.ts'

const silent: Partial<Facts> = {
  status: { ...status, peers: countPeers([{ ...soundPeer, ...silentSide }], 10) },
  answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]),
}
const withBackend = (backendType: string, facts: Partial<Facts> = {}): Partial<Facts> => {
  const from = facts.status ?? status
  return { ...facts, status: { ...from, config: { ...from.config!, backendType } } }
}
const found = (part: Partial<Facts>): string[] =>
  (checkFirewall({ ...sound, ...part }) ?? []).map(({ name, detail, fix }) => `${name}: ${detail}: ${fix}`)

it('names the rule that drops the requests of this host, and a remedy', () => {
  const out = '-P OUTPUT DROP\n-A OUTPUT -o eth0 -j ACCEPT'
  expect(found({ ...silent, iptables: out })).toEqual([
    'probes-dropped: -P OUTPUT DROP: accept echo requests and replies: `iptables -I OUTPUT -p icmp -d 10.5.0.0/16 -j ACCEPT`',
  ])
  const mangle = '*mangle\n-A OUTPUT -o flannel0 -j DROP\nCOMMIT'
  expect(found({ iptables: mangle })).toEqual([
    'probes-dropped: -t mangle -A OUTPUT -o flannel0 -j DROP: accept echo requests and replies: `iptables -I OUTPUT -t mangle -p icmp -d 10.5.0.0/16 -j ACCEPT`',
  ])
  const nft =
    'table inet own {\n\tchain o {\n\t\ttype filter hook output priority 0; policy accept;\n\t\ticmp type echo-reply drop\n\t}\n}\n'
  expect(found({ nft })).toEqual([
    'probes-dropped: nft: inet own o: icmp type echo-reply drop: accept echo requests and replies: `nft insert rule inet own o ip daddr 10.5.0.0/16 meta l4proto icmp accept`',
  ])
})

it('examines the replies of a peer only if the peer is silent', () => {
  const iptables = '-A INPUT -p icmp -m icmp --icmp-type 0 -j DROP'
  expect(found({ iptables })).toEqual([])
  expect(found({ ...silent, iptables })).toEqual([expect.stringContaining(`probes-dropped: ${iptables}: `)])
})

it('knows the probes of each backend', () => {
  const iptables = '-A OUTPUT -d 192.0.2.2/32 -o eth0 -p icmp -j DROP'
  // The nodes of a host-gw network probe the addresses of the hosts, and those of an alloc network do not probe.
  expect(found(withBackend('host-gw', { iptables }))).toEqual([
    `probes-dropped: ${iptables}: accept echo requests and replies: \`iptables -I OUTPUT -p icmp -d 192.0.2.2 -j ACCEPT\``,
  ])
  expect(found({ iptables })).toEqual([])
  const all = { iptables: '-A INPUT -p icmp -j DROP', ignoredEchoes: ['ipv4'] as const }
  expect(found(withBackend('alloc', all))).toEqual([])
  expect(found(withBackend('udp', all))).toHaveLength(2)
  expect(found({ ignoredEchoes: ['ipv6'] })).toEqual([])
})

it('the silence of a peer proves nothing if this host drops the probes', () => {
  const facts = { ...sound, ...silent, iptables: '-A OUTPUT -o flannel0 -j DROP' }
  const reach = { port: undefined, portNumber: 8285, isPinged: true, isOffLink: false }
  const details = (part: Partial<Facts>) =>
    checkPeers({ ...facts, ...part }, false, silenceCauses)!.map(({ detail }) => detail)
  expect(details({ reaches: new Map([['10.5.2.0-24', reach]]) })).toEqual([
    '10.5.2.0/24 at 192.0.2.2:8285: the firewall of this host drops the probes: see `probes-dropped`',
  ])
  expect(details({ reaches: new Map([['10.5.2.0-24', { ...reach, port: 'refused' }]]) })).toEqual([
    expect.stringMatching(/see `probes-dropped`; its host is up and refuses UDP port 8285/),
  ])
  const [source, destination] = [parseAddress('10.5.1.2')!, parseAddress('10.5.2.2')!]
  const steps = (of: Facts) =>
    explain({ source, destination, status: of.status!, facts: of, route: route('', 'flannel0') }).at(-1)
  expect(steps(facts)).toEqual({
    step: 'peer',
    passes: undefined,
    says: 'its host does not answer through the data path, 100% lost, but the firewall of this host drops the probes: -A OUTPUT -o flannel0 -j DROP',
  })
  expect(steps({ ...facts, iptables: '' })!.passes).toBe(false)
})

it('evaluates the rules for the probes of only some silent peers, because each peer costs a walk over all rules', () => {
  const peers = Array.from({ length: 40 }, (_, at) => ({
    ...soundPeer,
    ...silentSide,
    lease: `10.5.${at + 2}.0-24`,
    subnet: `10.5.${at + 2}.0/24`,
  }))
  const facts = { ...sound, iptables: '-A OUTPUT -o flannel0 -j DROP', answers: new Map() }
  const details = checkPeers(
    { ...facts, status: { ...status, peers: countPeers(peers, 10) } },
    false,
    silenceCauses,
  )!.flatMap(({ name, detail }) => (name === 'peer-silent' ? detail : []))
  expect(details).toHaveLength(40)
  expect(details.filter((detail) => detail.includes('the firewall of this host drops the probes'))).toHaveLength(16)
})

it('evaluates the rules for equal packets only once', () => {
  const { walk } = readRules({ ...sound, iptables: '-P INPUT DROP' }, 'ipv4')
  const [source, destination] = [parseAddress('10.5.1.2')!, parseAddress('10.5.2.2')!]
  const packet = { chain: 'INPUT', protocol: 'icmp', source, destination } as const
  expect(walk({ ...packet })).toBe(walk({ ...packet }))
  expect(walk({ ...packet, state: 'new' })).not.toBe(walk(packet))
})
