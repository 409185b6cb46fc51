// explain.test.ts - each kind of way that a packet may take, and what stops it there.

import { expect, it } from 'vitest'
import { explain } from '../../../src/doctor/explain.ts'
import type { Facts } from '../../../src/doctor/facts.ts'
import type { Route } from '../../../src/host/links.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { sound, soundStatus as status } from '../../support/facts.ts'

const ip = (text: string): number => parseIpv4(text)!
const by = (device: string, gateway?: string): Route => ({
  ...{ device, gateway, destination: '', type: 'unicast', metric: 0, source: undefined },
})
const ask = (source: string, destination: string, route: Route | undefined, facts: Partial<Facts> = {}) =>
  explain({
    source: ip(source),
    destination: ip(destination),
    status: facts.status ?? status,
    facts: { ...sound, ...facts },
    route,
  })
const stopped = (...args: Parameters<typeof ask>): string[] =>
  ask(...args)
    .filter(({ passes }) => passes !== true)
    .map(({ step, passes }) => (passes === undefined ? `${step}?` : step))

const BAD_INPUT = '-P INPUT DROP\n-P FORWARD ACCEPT'
const BAD_FORWARD = '-P INPUT ACCEPT\n-P FORWARD DROP'

it.each<[string, Parameters<typeof ask>, string[]]>([
  ['to a peer', ['10.5.1.2', '10.5.2.2', by('flannel0')], []],
  [
    'from this host to a peer, where nobody forwards',
    ['192.0.2.1', '10.5.2.2', by('flannel0'), { isForwarding: false, iptables: BAD_FORWARD }],
    [],
  ],
  ['to a peer, past the tunnel', ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.2')], []],
  ['to a peer by another route', ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.254')], ['route']],
  ['to a peer without a route', ['10.5.1.2', '10.5.2.2', undefined], ['route']],
  [
    'to a peer, where nobody forwards',
    ['10.5.1.2', '10.5.2.2', by('flannel0'), { isForwarding: false }],
    ['forwarding'],
  ],
  ['to a peer, through a firewall', ['10.5.1.2', '10.5.2.2', by('flannel0'), { iptables: BAD_FORWARD }], ['firewall']],
  [
    'to a peer, through a firewall that nobody can read',
    ['10.5.1.2', '10.5.2.2', by('flannel0'), { iptables: undefined }],
    ['firewall?'],
  ],
  ['to nobody', ['10.5.1.2', '10.5.7.2', by('flannel0')], ['data path']],
  ['to the world', ['10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254')], []],
  ['to the world without a way', ['10.5.1.2', '198.51.100.1', undefined], ['route']],
  ['from a peer', ['10.5.2.2', '10.5.1.2', by('cni0')], []],
  ['from a peer to a container that is not there', ['10.5.2.2', '10.5.1.2', by('flannel0')], ['route']],
  ['from a peer, through a firewall', ['10.5.2.2', '10.5.1.2', by('cni0'), { iptables: BAD_INPUT }], ['firewall']],
  ['from nobody', ['10.5.7.2', '10.5.1.2', by('cni0')], ['data path']],
  ['from the world', ['198.51.100.1', '10.5.1.2', by('cni0')], []],
  ['within this host', ['10.5.1.2', '10.5.1.3', by('cni0')], []],
  ['between others', ['10.5.2.2', '10.5.7.2', by('flannel0')], ['way?']],
])('%s', (_name, question, expected) => {
  expect(stopped(...question)).toEqual(expected)
})

it('says which peer, by which rule, and what its host answered', () => {
  const says = ask('10.5.1.2', '10.5.2.2', by('flannel0')).map(({ step, says: text }) => `${step}: ${text}`)
  expect(says).toEqual([
    "source: 10.5.1.2 is of this node's subnet 10.5.1.0/24",
    'destination: 10.5.2.2 is of the subnet 10.5.2.0/24 of 192.0.2.2',
    'forwarding: net.ipv4.ip_forward is 1',
    'firewall: FORWARD: let through by -P FORWARD ACCEPT',
    'route: to flannel0',
    'data path: the native engine sends it to 192.0.2.2:8285',
    'mtu: packets of up to 1472 bytes go whole as far as this host knows; larger ones are cut, or refused where they may not be',
    'peer: its host answers through the data path, in 1 ms',
  ])
})
