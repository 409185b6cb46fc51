// ipsec.test.ts - weft doctor and weft explain name the IPsec policies of other programs that drop packets of the network.

import { describe, expect, it } from 'vitest'
import type { IpsecPolicy, IpsecTemplate } from '../../../../src/host/kernel.ts'
import { parseAddress } from '../../../../src/net/address.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { hasKeyDaemon, type IpsecFacts } from '../../../../src/tool/doctor/ipsec-facts.ts'
import { blocksSending, checkIpsec } from '../../../../src/tool/doctor/ipsec.ts'
import { sound, soundDual } from '../../../support/facts.ts'
import { blockPolicy } from '../../../support/ipsec-policy.ts'

const none: IpsecFacts = { policies: [], states: [], blockedByDefault: [], hasKeyDaemon: false, exempt: [] }
const template = (part: Partial<IpsecTemplate> = {}): IpsecTemplate => ({
  family: 'ipv4',
  source: parseAddress('192.0.2.2')!,
  destination: parseAddress('192.0.2.1')!,
  protocol: 50,
  requestId: 7,
  mode: 1,
  isOptional: false,
  ...part,
})
const ALL = '0.0.0.0/0'
const NET = '10.5.0.0/16'
const allow = { isBlock: false }
const keyed = { isBlock: false, templates: [template()] }
const ipsecStatus = { ...sound.status!, config: { ...sound.status!.config!, backendType: 'ipsec' } }

const found = (part: Partial<IpsecFacts>, facts: Partial<Facts> = {}): string[] =>
  checkIpsec({ ...sound, ...facts, ipsec: { ...none, ...part } }).map(({ name, detail }) => `${name}: ${detail}`)
const names = (...args: Parameters<typeof found>): string[] => found(...args).map((line) => line.split(':')[0]!)

describe('a policy that drops packets of the network', () => {
  it.each<[string, IpsecPolicy[], string[]]>([
    [
      'blocks all forwarded packets',
      [blockPolicy('fwd', ALL, ALL)],
      [
        'ipsec-blocked: packets from 10.5.1.2 to 10.5.2.2: the IPsec policy "src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd action block"',
      ],
    ],
    [
      'blocks packets from the tunnel to containers',
      [blockPolicy('fwd', ALL, '10.5.1.0/24')],
      [
        'ipsec-blocked: packets from 10.5.2.2 to 10.5.1.2: the IPsec policy "src 0.0.0.0/0 dst 10.5.1.0/24 dir fwd action block"',
      ],
    ],
    [
      'blocks packets out of the tunnel device',
      [blockPolicy('out', NET, NET)],
      [
        'ipsec-blocked: packets from 10.5.1.2 to 10.5.2.2: the IPsec policy "src 10.5.0.0/16 dst 10.5.0.0/16 dir out action block"',
      ],
    ],
    [
      'blocks the datagrams of the backend',
      [blockPolicy('in', '192.0.2.0/24', '192.0.2.1/32', { protocol: 17 })],
      [
        'ipsec-blocked: packets from 192.0.2.2 to 192.0.2.1: the IPsec policy "src 192.0.2.0/24 dst 192.0.2.1/32 proto 17 dir in action block"',
      ],
    ],
    [
      'demands keys that this host does not have',
      [blockPolicy('fwd', ALL, '10.5.1.0/24', keyed)],
      [
        'ipsec-blocked: packets from 10.5.2.2 to 10.5.1.2: the IPsec policy "src 0.0.0.0/0 dst 10.5.1.0/24 dir fwd tmpl src 192.0.2.2 dst 192.0.2.1", for which this host has no keys (`ip xfrm state`)',
      ],
    ],
    [
      'blocks some protocols, and a second policy the rest',
      [blockPolicy('fwd', ALL, NET, { protocol: 6 }), blockPolicy('fwd', ALL, ALL, { priority: 3 })],
      [
        'ipsec-blocked: packets from 10.5.1.2 to 10.5.2.2: the IPsec policy "src 0.0.0.0/0 dst 10.5.0.0/16 proto 6 dir fwd action block"',
        'ipsec-blocked: packets from 10.5.1.2 to 10.5.2.2: the IPsec policy "src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd action block"',
      ],
    ],
  ])('%s', (_name, policies, lines) => expect(found({ policies })).toEqual(lines))

  it('is found for IPv6', () => {
    const policies = [blockPolicy('fwd', '::/0', 'fd00:5:0:1::/64')]
    expect(found({ policies }, soundDual)).toEqual([
      'ipsec-blocked: packets from fd00:5:0:2::2 to fd00:5:0:1::2: the IPsec policy "src ::/0 dst fd00:5:0:1::/64 dir fwd action block"',
    ])
  })

  it('gets a command that deletes the policy', () => {
    const [one] = checkIpsec({ ...sound, ipsec: { ...none, policies: [blockPolicy('fwd', ALL, ALL)] } })
    expect(one!.fix).toContain('`ip xfrm policy delete src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd`')
  })

  it('is a warning if a program may get the missing keys', () => {
    expect(names({ policies: [blockPolicy('out', NET, NET, keyed)], hasKeyDaemon: true })).toEqual(['ipsec-unkeyed'])
    expect(names({ policies: [blockPolicy('out', NET, NET)], hasKeyDaemon: true })).toEqual(['ipsec-blocked'])
  })

  it('may be the default', () => {
    expect(found({ blockedByDefault: ['fwd'] })).toEqual([
      'ipsec-blocked: packets from 10.5.1.2 to 10.5.2.2: the default IPsec policy for fwd',
    ])
    const policies = [blockPolicy('fwd', ALL, ALL, allow)]
    expect(found({ policies, blockedByDefault: ['fwd'] })).toEqual([])
  })
})

it.each<[string, Partial<IpsecFacts>]>([
  [
    'is for other networks',
    { policies: [blockPolicy('fwd', ALL, '10.6.0.0/16'), blockPolicy('out', '10.6.0.0/16', ALL)] },
  ],
  ['is for the other family', { policies: [blockPolicy('fwd', '::/0', '::/0')] }],
  ['allows packets', { policies: [blockPolicy('fwd', ALL, ALL, allow)] }],
  [
    'comes after one that allows packets',
    { policies: [blockPolicy('fwd', ALL, ALL, { priority: 2 }), blockPolicy('fwd', ALL, ALL, allow)] },
  ],
  [
    'is younger than one with the same priority',
    { policies: [blockPolicy('fwd', ALL, ALL, allow), blockPolicy('fwd', ALL, ALL)] },
  ],
  [
    'is for another protocol than that of the backend',
    { policies: [blockPolicy('in', '192.0.2.0/24', ALL, { protocol: 6 })] },
  ],
  ['is for marked packets', { policies: [blockPolicy('fwd', ALL, ALL, { mark: 5 })] }],
  ['is for the packets of an xfrm interface', { policies: [blockPolicy('fwd', ALL, ALL, { interfaceId: 5 })] }],
  ['is for packets to another interface', { policies: [blockPolicy('fwd', ALL, ALL, { deviceIndex: 77 })] }],
  ['has its keys', { policies: [blockPolicy('fwd', ALL, ALL, keyed)], states: [template()] }],
  [
    'demands no keys',
    { policies: [blockPolicy('fwd', ALL, ALL, { isBlock: false, templates: [template({ isOptional: true })] })] },
  ],
  [
    'does not apply to these interfaces',
    {
      policies: [blockPolicy('fwd', ALL, ALL), blockPolicy('out', NET, NET)],
      exempt: [
        ...['cni0', 'flannel0'].map((device) => ({ setting: 'disable_policy', family: 'ipv4', device }) as const),
        ...['cni0', 'flannel0'].map((device) => ({ setting: 'disable_xfrm', family: 'ipv4', device }) as const),
      ],
    },
  ],
])('does not report a policy that %s', (_name, part) => expect(found(part)).toEqual([]))

it('compares all parts of a template with the keys', () => {
  const by = (state: Partial<IpsecTemplate>, wanted: Partial<IpsecTemplate> = {}): number =>
    found({
      policies: [blockPolicy('fwd', ALL, ALL, { isBlock: false, templates: [template(wanted)] })],
      states: [template(state)],
    }).length
  const other = parseAddress('192.0.2.9')!
  expect(
    [{ requestId: 8 }, { mode: 0 }, { protocol: 51 }, { source: other }, { destination: other }].map((one) => by(one)),
  ).toEqual([1, 1, 1, 1, 1])
  expect(by({ source: other, requestId: 8 }, { source: 0, requestId: 0 })).toBe(0)
  expect(by({ source: other, mode: 0 }, { mode: 0 })).toBe(0)
})

it('does not report the policies of the backend ipsec, unless another backend runs', () => {
  const block = 0x77_65_66_74
  const policies = [
    blockPolicy('fwd', NET, '10.5.1.0/24', { priority: block }),
    blockPolicy('out', '10.5.1.0/24', '10.5.2.0/24', { isBlock: false, templates: [template({ requestId: 11 })] }),
  ]
  expect(found({ policies }, { status: ipsecStatus })).toEqual([])
  expect(names({ policies })).toEqual(['ipsec-blocked', 'ipsec-blocked'])
  // weft doctor reports a policy of another program that precedes the policies of the backend ipsec.
  expect(names({ policies: [blockPolicy('fwd', ALL, ALL), ...policies] }, { status: ipsecStatus })).toEqual([
    'ipsec-blocked',
  ])
})

it('knows whether this host drops its own packets to other nodes', () => {
  const is = (policies: IpsecPolicy[]): boolean => blocksSending({ ...sound, ipsec: { ...none, policies } })
  expect([is([blockPolicy('out', NET, NET)]), is([blockPolicy('fwd', ALL, ALL)]), is([])]).toEqual([true, false, false])
})

it('recognises a program that gets keys by its socket', () => {
  const head = 'sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n'
  const line = (protocol: number, groups: string): string =>
    `00000000e6d0a5f2 ${protocol}   900        ${groups} 0        0        0     2        0        20145\n`
  const pfkey = 'sk       RefCnt Rmem   Wmem   User   Inode\n'
  const is = (sockets: string, keys = pfkey): boolean => hasKeyDaemon(head + sockets, keys)
  expect([is(line(6, '00000123')), is(line(6, '00000000')), is(line(6, '00000004')), is(line(0, '00000001'))]).toEqual([
    true,
    false,
    false,
    false,
  ])
  expect([is('', `${pfkey}00000000e6d0a5f2 3 0 0 0 20145\n`), hasKeyDaemon('', '')]).toEqual([true, false])
})
