// unknown-senders.test.ts - the warnings about senders whose packets were refused.

import { beforeEach, describe, expect, it } from 'vitest'
import { formatAddress } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import type { UnknownSender } from '../../../../src/path/engine/filter.ts'
import { UnknownSenderLog } from '../../../../src/path/tunnel/unknown-senders.ts'
import { hostsAt } from '../../../support/peer-hosts.ts'

describe('unknown senders', () => {
  const ip = (text: string): number => parseIpv4(text)!
  const sender = (reason: string, from: string, source: string, destination = '10.5.72.2'): UnknownSender => ({
    reason: `rx_drop_${reason}`,
    from: ip(from),
    source: ip(source),
    destination: ip(destination),
  })
  const peers = [
    { subnet: parseIpv4Net('10.5.1.0/24')!, ...hostsAt(ip('192.0.2.2')), port: 8285 },
    { subnet: parseIpv4Net('10.5.2.0/24')!, ...hostsAt(ip('192.0.2.3')), port: 8285 },
  ]
  const filter = { network: { ipv4: parseIpv4Net('10.5.0.0/16')! }, subnet: { ipv4: parseIpv4Net('10.5.72.0/24')! } }
  let lines: string[]
  let now: number
  let log: UnknownSenderLog
  /** Returns the log lines for these senders. */
  function report(senders: readonly UnknownSender[]): void {
    log.report(senders)
    log.report([])
  }
  beforeEach(() => {
    lines = []
    now = 0
    const say = (level: string) => (line: string) => void lines.push(`${level} ${line}`)
    const to = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }
    log = new UnknownSenderLog({ verifySource: 'strict', ...filter }, to, () => now)
    log.setPeers(() => peers)
  })

  it.each([
    [
      sender('unknown_sender', '192.0.2.9', '10.5.7.7'),
      'no lease assigns 10.5.7.7 to this sender. If the sender is a node, see that its lease is in the store; else block it in the firewall',
    ],
    [
      { ...sender('unknown_sender', '192.0.2.9', '0.0.0.0'), source: 0xfdn << 120n, destination: 1n },
      'no lease assigns fd00:: to this sender. If the sender is a node, see that its lease is in the store; else block it in the firewall',
    ],
    [
      sender('spoofed_source', '192.0.2.9', '10.5.1.7'),
      '10.5.1.7 belongs to the node at 192.0.2.2. They are forged, or set "VerifySource": "inner" if that peer is behind NAT or ' +
        'published another address with --public-ip',
    ],
    [
      sender('spoofed_source', '192.0.2.9', '10.5.72.7'),
      'they claim to be from 10.5.72.7, which no other node can have',
    ],
    [sender('spoofed_source', '192.0.2.9', '0.0.0.0'), 'they claim to be from 0.0.0.0, which no other node can have'],
    [
      sender('destination', '192.0.2.2', '10.5.1.7', '10.5.2.1'),
      "they are for 10.5.2.1, which is not in this node's subnet 10.5.72.0/24",
    ],
  ])('%o is logged once, with a remedy', (one, said) => {
    report([one, { ...one, source: typeof one.source === 'number' ? one.source && one.source + 1 : one.source + 1n }])
    now = 3_600_000
    report([one])
    expect(lines).toEqual([`W Packets from ${formatAddress(one.from)} are not let in: ${said}`])
  })

  it('are logged again for another reason, and so are further senders', () => {
    report([sender('unknown_sender', '192.0.2.9', '10.5.7.7')])
    report([sender('spoofed_source', '192.0.2.9', '10.5.1.7')])
    report([sender('spoofed_source', '192.0.2.3', '10.5.1.7')])
    expect(lines).toHaveLength(3)
  })

  it('are not warned about if their lease is known by now', () => {
    const early = [
      sender('unknown_sender', '192.0.2.4', '10.5.3.7'),
      sender('unknown_sender', '192.0.2.4', '10.5.3.8'),
      sender('unknown_sender', '192.0.2.4', '172.17.0.2'),
    ]
    log.report(early)
    expect(lines).toEqual([])
    log.setPeers(() => [...peers, { subnet: parseIpv4Net('10.5.3.0/24')!, ...hostsAt(ip('192.0.2.4')), port: 8285 }])
    log.report([])
    expect(lines).toEqual(["I Packets that came before their sender's lease was known were dropped: 192.0.2.4"])
    log.setPeers(() => peers)
    report(early)
    expect(lines[1]).toMatch(/^W Packets from 192\.0\.2\.4 are not let in: no lease/)
  })

  it('whose lease came late are logged once', () => {
    const early = sender('unknown_sender', '192.0.2.2', '172.17.0.2')
    for (now = 0; now < 60_000; now += 2_000) report([early])
    expect(lines).toEqual(["I Packets that came before their sender's lease was known were dropped: 192.0.2.2"])
  })

  it('with WireGuard are logged for a source outside their subnet, although their lease is known', () => {
    const say = (level: string) => (line: string) => void lines.push(`${level} ${line}`)
    const to = { info: say('I'), warn: say('W'), error: say('E'), v: () => false }
    log = new UnknownSenderLog({ verifySource: 'strict', provesSender: true, ...filter }, to, () => now)
    log.setPeers(() => peers)
    for (now = 0; now < 60_000; now += 2_000)
      report([sender('unknown_sender', '192.0.2.2', '192.168.7.7'), sender('spoofed_source', '192.0.2.3', '10.5.1.7')])
    expect(lines).toEqual([
      'W Packets from 192.0.2.2 are not let in: they come from 192.168.7.7, and with WireGuard a node may send from its own subnet alone. ' +
        'Have that node masquerade them (`--ip-masq`), or have the program there use the address of the WireGuard device',
      'W Packets from 192.0.2.3 are not let in: 10.5.1.7 belongs to the node at 192.0.2.2, and with WireGuard a node may send from its own subnet alone. ' +
        'See which node has which subnet: `weft lease ls`',
    ])
  })

  it('are judged by the current leases', () => {
    log.report([sender('unknown_sender', '192.0.2.9', '10.5.3.7')])
    log.setPeers(() => [...peers, { subnet: parseIpv4Net('10.5.3.0/24')!, ...hostsAt(ip('192.0.2.4')), port: 8285 }])
    log.report([])
    expect(lines).toEqual([expect.stringContaining('10.5.3.7 belongs to the node at 192.0.2.4')])
  })

  it('are logged at a limited rate, and the others later if they still send', () => {
    const many = Array.from({ length: 512 }, (_, index) =>
      sender('unknown_sender', `198.51.${index >> 8}.${index & 255}`, '10.5.7.7'),
    )
    for (now = 0; now < 60_000; now += 2_000) report(many)
    expect(lines).toHaveLength(8)
    for (; now < 180_000; now += 2_000) report(many)
    expect(new Set(lines).size).toBe(24)
    expect(lines).toHaveLength(24)
  })
})
