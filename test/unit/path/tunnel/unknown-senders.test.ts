// unknown-senders.test.ts - what is said of those who are not let in.

import { beforeEach, describe, expect, it } from 'vitest'
import { formatAddress } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import type { Stranger } from '../../../../src/path/engine/filter.ts'
import { createStrangerLog, type StrangerLog } from '../../../../src/path/tunnel/unknown-senders.ts'

describe('strangers', () => {
  const ip = (text: string): number => parseIpv4(text)!
  const stranger = (reason: string, from: string, source: string, destination = '10.5.72.2'): Stranger => ({
    reason: `rx_drop_${reason}`,
    from: ip(from),
    source: ip(source),
    destination: ip(destination),
  })
  const peers = [
    { subnet: parseIpv4Net('10.5.1.0/24')!, endpoint: ip('192.0.2.2'), port: 8285 },
    { subnet: parseIpv4Net('10.5.2.0/24')!, endpoint: ip('192.0.2.3'), port: 8285 },
  ]
  const filter = { network: { ipv4: parseIpv4Net('10.5.0.0/16')! }, subnet: { ipv4: parseIpv4Net('10.5.72.0/24')! } }
  let lines: string[]
  let now: number
  let log: StrangerLog
  /** What is said of these. */
  function name(strangers: readonly Stranger[]): void {
    log.name(strangers)
    log.name([])
  }
  beforeEach(() => {
    lines = []
    now = 0
    const say = (level: string) => (line: string) => void lines.push(`${level} ${line}`)
    const to = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }
    log = createStrangerLog({ verifySource: 'strict', ...filter }, to, () => now)
    log.setPeers(() => peers)
  })

  it.each([
    [
      stranger('unknown_sender', '192.0.2.9', '10.5.7.7'),
      'no lease says that 10.5.7.7 is there. If that is a node, see that its lease is in the store; else have the firewall keep it out',
    ],
    [
      { ...stranger('unknown_sender', '192.0.2.9', '0.0.0.0'), source: 0xfdn << 120n, destination: 1n },
      'no lease says that fd00:: is there. If that is a node, see that its lease is in the store; else have the firewall keep it out',
    ],
    [
      stranger('spoofed_source', '192.0.2.9', '10.5.1.7'),
      '10.5.1.7 belongs to the node at 192.0.2.2. They are forged, or set "VerifySource": "inner" if that peer is behind NAT or ' +
        'published another address with --public-ip',
    ],
    [
      stranger('spoofed_source', '192.0.2.9', '10.5.72.7'),
      'they claim to be from 10.5.72.7, which no other node can have',
    ],
    [stranger('spoofed_source', '192.0.2.9', '0.0.0.0'), 'they claim to be from 0.0.0.0, which no other node can have'],
    [
      stranger('destination', '192.0.2.2', '10.5.1.7', '10.5.2.1'),
      "they are for 10.5.2.1, which is not in this node's subnet 10.5.72.0/24",
    ],
  ])('%o is named once, with what to do', (one, said) => {
    name([one, { ...one, source: typeof one.source === 'number' ? one.source && one.source + 1 : one.source + 1n }])
    now = 3_600_000
    name([one])
    expect(lines).toEqual([`W Packets from ${formatAddress(one.from)} are not let in: ${said}`])
  })

  it('are named again for another reason, and others too', () => {
    name([stranger('unknown_sender', '192.0.2.9', '10.5.7.7')])
    name([stranger('spoofed_source', '192.0.2.9', '10.5.1.7')])
    name([stranger('spoofed_source', '192.0.2.3', '10.5.1.7')])
    expect(lines).toHaveLength(3)
  })

  it('were none when their lease is known by now', () => {
    const early = [
      stranger('unknown_sender', '192.0.2.4', '10.5.3.7'),
      stranger('unknown_sender', '192.0.2.4', '10.5.3.8'),
      stranger('unknown_sender', '192.0.2.4', '172.17.0.2'),
    ]
    log.name(early)
    expect(lines).toEqual([])
    log.setPeers(() => [...peers, { subnet: parseIpv4Net('10.5.3.0/24')!, endpoint: ip('192.0.2.4'), port: 8285 }])
    log.name([])
    expect(lines).toEqual(["I Packets that came before their sender's lease was known were dropped: 192.0.2.4"])
    log.setPeers(() => peers)
    name(early)
    expect(lines[1]).toMatch(/^W Packets from 192\.0\.2\.4 are not let in: no lease/)
  })

  it('are told of once, as early as they come', () => {
    const early = stranger('unknown_sender', '192.0.2.2', '172.17.0.2')
    for (now = 0; now < 60_000; now += 2_000) name([early])
    expect(lines).toEqual(["I Packets that came before their sender's lease was known were dropped: 192.0.2.2"])
  })

  it('with WireGuard are named for a source outside their subnet, though their lease is known', () => {
    const say = (level: string) => (line: string) => void lines.push(`${level} ${line}`)
    const to = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }
    log = createStrangerLog({ verifySource: 'strict', provesSender: true, ...filter }, to, () => now)
    log.setPeers(() => peers)
    for (now = 0; now < 60_000; now += 2_000)
      name([
        stranger('unknown_sender', '192.0.2.2', '192.168.7.7'),
        stranger('spoofed_source', '192.0.2.3', '10.5.1.7'),
      ])
    expect(lines).toEqual([
      'W Packets from 192.0.2.2 are not let in: they come from 192.168.7.7, and with WireGuard a node may send from its own subnet alone. ' +
        'Have that node masquerade them (`--ip-masq`), or have the program there use the address of the WireGuard device',
      'W Packets from 192.0.2.3 are not let in: 10.5.1.7 belongs to the node at 192.0.2.2, and with WireGuard a node may send from its own subnet alone. ' +
        'See which node has which subnet: `weft lease ls`',
    ])
  })

  it('are judged by the leases of now', () => {
    log.name([stranger('unknown_sender', '192.0.2.9', '10.5.3.7')])
    log.setPeers(() => [...peers, { subnet: parseIpv4Net('10.5.3.0/24')!, endpoint: ip('192.0.2.4'), port: 8285 }])
    log.name([])
    expect(lines).toEqual([expect.stringContaining('10.5.3.7 belongs to the node at 192.0.2.4')])
  })

  it('are named few in a minute, however many they are, and the others when they still send', () => {
    const many = Array.from({ length: 512 }, (_, index) =>
      stranger('unknown_sender', `198.51.${index >> 8}.${index & 255}`, '10.5.7.7'),
    )
    for (now = 0; now < 60_000; now += 2_000) name(many)
    expect(lines).toHaveLength(8)
    for (; now < 180_000; now += 2_000) name(many)
    expect(new Set(lines).size).toBe(24)
    expect(lines).toHaveLength(24)
  })
})
