// flannel-rules.test.ts - the rules of every flannel version are recognised, and no similar ones.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  findFlannelNftRules,
  findFlannelRules,
  FLANNEL_CHAINS,
  flannelNetworks,
  readTables,
  removalInput,
} from '../../../../src/path/firewall/flannel-rules.ts'
import { asIpv6 } from '../../../support/as-ipv6.ts'

const N = '10.1.0.0/16'
const S = '10.1.7.0/24'
const MASQ = '-m comment --comment "flanneld masq" '
const FORWARD = '-m comment --comment "flanneld forward" '

/**
 * The rules that each version left in nat and filter, as iptables-save prints them (network/ipmasq.go,
 * network/iptables.go by tag).
 */
const direct = (comment: string, masquerade: string, ownSubnet: boolean): string[] => [
  `-A POSTROUTING -s ${N} -d ${N} ${comment}-j RETURN`,
  `-A POSTROUTING -s ${N} ! -d 224.0.0.0/4 ${comment}-j ${masquerade}`,
  ...(ownSubnet ? [`-A POSTROUTING ! -s ${N} -d ${S} ${comment}-j RETURN`] : []),
  `-A POSTROUTING ! -s ${N} -d ${N} ${comment}-j ${masquerade}`,
]
const forward = (comment: string): string[] => [
  `-A FORWARD -s ${N} ${comment}-j ACCEPT`,
  `-A FORWARD -d ${N} ${comment}-j ACCEPT`,
]
const POSTRTG_JUMP = `-A POSTROUTING ${MASQ}-j FLANNEL-POSTRTG`
const FWD_JUMP = `-A FORWARD ${FORWARD}-j FLANNEL-FWD`
const POSTRTG_RULES = [
  `-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 ${MASQ}-j RETURN`,
  `-A FLANNEL-POSTRTG -s ${S} -d ${N} ${MASQ}-j RETURN`,
  `-A FLANNEL-POSTRTG -s ${N} -d ${S} ${MASQ}-j RETURN`,
  `-A FLANNEL-POSTRTG ! -s ${N} -d ${S} ${MASQ}-j RETURN`,
  `-A FLANNEL-POSTRTG -s ${N} ! -d 224.0.0.0/4 ${MASQ}-j MASQUERADE --random-fully`,
  `-A FLANNEL-POSTRTG ! -s ${N} -d ${N} ${MASQ}-j MASQUERADE --random-fully`,
]
const FWD_RULES = [`-A FLANNEL-FWD -s ${N} ${FORWARD}-j ACCEPT`, `-A FLANNEL-FWD -d ${N} ${FORWARD}-j ACCEPT`]
const OLD_CHAIN = [`-A FLANNEL -d ${N} -j ACCEPT`, '-A FLANNEL ! -d 224.0.0.0/4 -j MASQUERADE']

/** Rules of other programs in the tables, which must stay. */
const FOREIGN_NAT = [
  '-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE',
  '-A POSTROUTING -s 10.2.0.0/16 -d 10.2.0.0/16 -j RETURN',
  '-A POSTROUTING -s 10.2.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE',
  `-A POSTROUTING -s ${N} -o eth1 -j MASQUERADE`,
  `-A POSTROUTING -s ${N} ! -d 224.0.0.0/4 -j MASQUERADE --to-ports 1024-65535`,
  '-A POSTROUTING -m comment --comment "flanneld masquerade" -j ACCEPT',
]
const FOREIGN_FILTER = [
  `-A FORWARD -s ${N} -i cni0 -j ACCEPT`,
  '-A FORWARD -s 10.2.0.0/16 -j ACCEPT',
  '-A FORWARD -d 10.2.0.0/16 -j ACCEPT',
  `-A FORWARD -s ${N} -j DROP`,
]
/** Puts foreign rules before, between and after these. */
const among = (own: readonly string[], foreign: readonly string[]): string[] =>
  own.flatMap((line, index) => [foreign[index % foreign.length]!, line]).concat(foreign)

const VERSIONS: readonly (readonly [version: string, nat: readonly string[], filter: readonly string[]])[] = [
  ['0.6', direct('', 'MASQUERADE', false), []],
  ['0.9', direct('', 'MASQUERADE', true), forward('')],
  ['0.11', direct('', 'MASQUERADE --random-fully', true), forward('')],
  ['0.16', direct(MASQ, 'MASQUERADE --random-fully', true), forward(FORWARD)],
  ['0.16 with an old iptables', direct(MASQ, 'MASQUERADE', true), forward(FORWARD)],
]

describe('rules in built-in chains', () => {
  it.each(VERSIONS)('of %s are found among foreign rules, and removed', (_version, nat, filter) => {
    for (const [table, own, foreign] of [
      ['nat', nat, FOREIGN_NAT],
      ['filter', filter, FOREIGN_FILTER],
    ] as const) {
      const { rules, removal, stays } = findFlannelRules(table, among(own, foreign), new Set([N]))
      expect(rules.toSorted()).toEqual(own.toSorted())
      expect(removal.toSorted()).toEqual(own.map((line) => line.replace('-A', '-D')).toSorted())
      expect(stays).toEqual([])
    }
  })

  it.each(VERSIONS)('of %s stay if they belong to another network', (_version, nat, filter) => {
    expect(findFlannelRules('nat', nat, new Set(['10.3.0.0/16'])).removal).toEqual([])
    expect(findFlannelRules('filter', filter, new Set(['10.3.0.0/16'])).removal).toEqual([])
  })

  it('without a comment stay if the set is incomplete or not in order', () => {
    const whole = direct('', 'MASQUERADE', true)
    const [a, b, c, d] = whole as [string, string, string, string]
    for (const part of [[a], [a, b], [a, b, c], [b, c, d], [a, c, d], [d, c, b, a], [b, a, d]])
      expect(findFlannelRules('nat', part, new Set([N])).rules, part.join('\n')).toEqual([])
    for (const part of [forward('').slice(0, 1), forward('').toReversed()])
      expect(findFlannelRules('filter', part, new Set([N])).rules).toEqual([])
  })

  it('of two networks are removed separately, although they are interleaved', () => {
    const other = (line: string): string => line.replaceAll('10.1.', '10.9.')
    const whole = direct('', 'MASQUERADE', true)
    const mixed = whole.flatMap((line) => [line, other(line)])
    for (const networks of [[N], [other(N)]]) {
      const own = networks[0] === N ? whole : whole.map(other)
      expect(findFlannelRules('nat', mixed, new Set(networks)).rules).toEqual(own)
    }
    expect(findFlannelRules('nat', mixed, new Set([N, other(N)])).rules).toEqual([...whole, ...whole.map(other)])
    expect(flannelNetworks(mixed)).toEqual([N, other(N)])
    // Half of one set and half of another are not a set.
    expect(findFlannelRules('nat', [whole[0]!, whole[1]!, other(whole[3]!)], new Set([N, other(N)])).rules).toEqual([])
    expect(findFlannelRules('nat', [...whole.slice(0, 2), ...whole], new Set([N])).rules).toEqual(whole)
  })

  it('with a comment are removed even if other rules are missing', () => {
    const [, b, , d] = direct(MASQ, 'MASQUERADE', true) as [string, string, string, string]
    expect(findFlannelRules('nat', [d, b], new Set([N])).rules).toEqual([d, b])
    // Rules without a comment do not complete the set.
    const [, bare, , last] = direct('', 'MASQUERADE', true) as [string, string, string, string]
    const [own] = direct(MASQ, 'MASQUERADE', true) as [string]
    expect(findFlannelRules('nat', [own, bare, last], new Set([N])).rules).toEqual([own])
  })

  it('are not recognised with one additional word in any position', () => {
    const words = ['-i', 'eth0', '-p', 'tcp', '!', '-j', 'ACCEPT', '--random', '10.1.0.0/16']
    const own = [...direct(MASQ, 'MASQUERADE --random-fully', true), ...forward(FORWARD), POSTRTG_JUMP, FWD_JUMP]
    fc.assert(
      fc.property(fc.constantFrom(...own), fc.nat(), fc.constantFrom(...words), (line, at, word) => {
        const parts = line.split(' ')
        parts.splice(1 + (at % parts.length), 0, word)
        for (const table of ['nat', 'filter'])
          expect(findFlannelRules(table, [parts.join(' ')], new Set([N])).rules).toEqual([])
      }),
      { numRuns: 2000 },
    )
  })

  it('are found with foreign rules between them in any position, and those stay', () => {
    const [, nat] = VERSIONS[1]!
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.constantFrom(...FOREIGN_NAT), fc.nat(nat.length))), (foreign) => {
        const lines = [...nat.keys(), nat.length].flatMap((place) => [
          ...foreign.filter(([, at]) => at === place).map(([line]) => line),
          ...nat.slice(place, place + 1),
        ])
        expect(findFlannelRules('nat', lines, new Set([N])).rules).toEqual(nat)
      }),
    )
  })

  it('are removed twice if they exist twice', () => {
    const twice = [...direct('', 'MASQUERADE', true), ...direct('', 'MASQUERADE', true)]
    expect(findFlannelRules('nat', twice, new Set([N])).rules).toEqual(twice)
  })

  it('for IPv6 are found too', () => {
    const six = direct(MASQ, 'MASQUERADE', true).map((line) =>
      line.replaceAll(N, 'fd00:1::/48').replaceAll(S, 'fd00:1:0:7::/64').replace('224.0.0.0/4', 'ff00::/8'),
    )
    expect(flannelNetworks(six)).toEqual(['fd00:1::/48'])
    expect(findFlannelRules('nat', six, new Set(['fd00:1::/48'])).rules).toEqual(six)
  })
})

describe("flannel's own chains", () => {
  const nat = [':POSTROUTING ACCEPT [0:0]', ':FLANNEL-POSTRTG - [0:0]', FOREIGN_NAT[0]!, POSTRTG_JUMP, ...POSTRTG_RULES]
  const filter = [':FORWARD ACCEPT [0:0]', ':FLANNEL-FWD - [0:0]', FOREIGN_FILTER[0]!, FWD_JUMP, ...FWD_RULES]

  it('are removed with their rules and the jumps to them', () => {
    const found = new Map([
      ['nat', findFlannelRules('nat', nat, new Set([N]))],
      ['filter', findFlannelRules('filter', filter, new Set([N]))],
    ])
    expect(found.get('nat')!.rules).toEqual([POSTRTG_JUMP, ...POSTRTG_RULES, '-N FLANNEL-POSTRTG'])
    expect(removalInput(found)).toBe(`*nat
-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-F FLANNEL-POSTRTG
-X FLANNEL-POSTRTG
COMMIT
*filter
-D FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-F FLANNEL-FWD
-X FLANNEL-FWD
COMMIT
`)
  })

  it('are removed without rules and jumps too', () => {
    expect(findFlannelRules('nat', [':FLANNEL-POSTRTG - [0:0]'], new Set()).removal).toEqual([
      '-F FLANNEL-POSTRTG',
      '-X FLANNEL-POSTRTG',
    ])
  })

  it('are recognised only in their own table', () => {
    expect(findFlannelRules('filter', nat, new Set([N])).removal).toEqual([])
    expect(findFlannelRules('nat', filter, new Set([N])).removal).toEqual([])
    const old = [':FLANNEL - [0:0]', ...OLD_CHAIN]
    expect(findFlannelRules('nat', old, new Set([N])).removal).toEqual(['-F FLANNEL', '-X FLANNEL'])
    expect(findFlannelRules('filter', old, new Set([N])).removal).toEqual([])
  })

  it('give no input if there is nothing to remove', () => {
    const found = new Map([
      ['nat', findFlannelRules('nat', nat, new Set(['10.3.0.0/16']))],
      ['filter', findFlannelRules('filter', [':FLANNEL-FWD - [0:0]'], new Set())],
    ])
    expect(removalInput(found)).toBe('*filter\n-F FLANNEL-FWD\n-X FLANNEL-FWD\nCOMMIT\n')
  })

  it('stay if they belong to another network or are excepted', () => {
    expect(findFlannelRules('nat', nat, new Set(['10.3.0.0/16'])).removal).toEqual([])
    expect(findFlannelRules('nat', nat, new Set([N]), FLANNEL_CHAINS[0]).removal).toEqual([])
    // Rules without flannel's comment also show to which network a chain belongs.
    const bare = filter.map((line) => (FWD_RULES.includes(line) ? line.replace(FORWARD, '') : line))
    expect(findFlannelRules('filter', bare, new Set(['10.3.0.0/16'])).rules).toEqual([])
    expect(findFlannelRules('filter', bare, new Set([N])).removal).toHaveLength(3)
  })

  it.each([
    ['IPv4', (line: string) => line],
    ['IPv6', (line: string) => asIpv6(line)],
  ])('of %s stay for the rules of another daemon, and lose only those of this one', (_, of) => {
    const [ownJump, mark = '', ...own] = [POSTRTG_JUMP, ...POSTRTG_RULES].map(of)
    const theirs = own.map((line) => line.replaceAll('10.1.', '10.3.').replaceAll('fd00:1:', 'fd00:3:'))
    expect(theirs.join('\n')).toMatch(/10\.3\.|fd00:3:/)
    const lines = [':FLANNEL-POSTRTG - [0:0]', ownJump!, mark, ...own, ...theirs]
    expect(findFlannelRules('nat', lines, new Set([of(N)]))).toEqual({
      rules: own,
      removal: own.map((line) => line.replace('-A', '-D')),
      stays: [],
    })
  })

  it('stay without rules if a foreign rule jumps to them', () => {
    const foreign = '-A POSTROUTING -o eth1 -j FLANNEL-POSTRTG'
    const { rules, removal, stays } = findFlannelRules('nat', [...nat, foreign], new Set([N]))
    expect(stays).toEqual([foreign])
    expect(removal).toEqual([POSTRTG_JUMP.replace('-A', '-D'), '-F FLANNEL-POSTRTG'])
    expect(rules).toEqual([POSTRTG_JUMP, ...POSTRTG_RULES])
  })

  it('of a flanneld with IPv6 off and an IPv6Network are removed too, although its subnet is ::/0', () => {
    const six = asIpv6(N)
    const lines = [':FLANNEL-POSTRTG - [0:0]', POSTRTG_JUMP, ...POSTRTG_RULES.map(asIpv6)].map((line) =>
      line.replace(/ (! )?-[sd] fd00:1:0:7::\/64/, ''),
    )
    expect(flannelNetworks(lines)).toEqual([six])
    expect(findFlannelRules('nat', lines, new Set([six])).removal).toEqual([
      POSTRTG_JUMP.replace('-A', '-D'),
      '-F FLANNEL-POSTRTG',
      '-X FLANNEL-POSTRTG',
    ])
  })

  it('show the network', () => {
    expect(flannelNetworks(nat)).toEqual([N])
    expect(flannelNetworks(filter)).toEqual([N])
    expect(flannelNetworks(direct('', 'MASQUERADE', false))).toEqual([N])
    expect(flannelNetworks([...forward(''), ...FOREIGN_NAT, ...FOREIGN_FILTER])).toEqual([])
    expect(flannelNetworks([`-A POSTROUTING -s ${N} ! -d 224.0.0.0/4 ${MASQ}-j MASQUERADE`])).toEqual([N])
  })
})

describe('the chain FLANNEL of 0.5', () => {
  const jump = `-A POSTROUTING -s ${N} -j FLANNEL`
  const host = `-A POSTROUTING ! -s ${N} -d ${N} -j MASQUERADE`

  it.each([[[jump, host]], [[jump]]])('is removed with its rules: %s', (rules) => {
    const lines = [':FLANNEL - [0:0]', ...rules, ...OLD_CHAIN]
    expect(flannelNetworks(lines)).toEqual([N])
    expect(findFlannelRules('nat', lines, new Set([N]))).toEqual({
      rules: [...rules, ...OLD_CHAIN, '-N FLANNEL'],
      removal: [...rules.map((rule) => rule.replace('-A', '-D')), '-F FLANNEL', '-X FLANNEL'],
      stays: [],
    })
  })

  it('is not recognised by its name alone', () => {
    for (const own of [OLD_CHAIN.slice(1), [...OLD_CHAIN, '-A FLANNEL -j LOG'], OLD_CHAIN.toReversed()]) {
      const lines = [':FLANNEL - [0:0]', jump, host, ...own]
      expect(flannelNetworks(lines)).toEqual([])
      expect(findFlannelRules('nat', lines, new Set([N])).removal).toEqual([])
    }
  })
})

it('tables are read from a listing, with any lines between them', () => {
  const save = '# Generated\n*nat\n:A - [0:0]\n-A A -j B\nCOMMIT\n# Completed\n*filter\n:C - [0:0]\nCOMMIT\n'
  expect([...readTables(save)]).toEqual([
    ['nat', [':A - [0:0]', '-A A -j B']],
    ['filter', [':C - [0:0]']],
  ])
  expect(removalInput(new Map())).toBe('')
})

describe("nft's listing of iptables' tables", () => {
  const jumpTo = (chain: string, handle: number, ...more: object[]) => ({
    rule: { chain: 'POSTROUTING', handle, expr: [...more, { counter: {} }, { jump: { target: chain } }] },
  })
  const comment = { xt: { type: 'match', name: 'comment' } }
  const list = (...rules: object[]): string =>
    JSON.stringify({
      nftables: [
        { metainfo: {} },
        { chain: { name: 'POSTROUTING' } },
        { chain: { name: 'FLANNEL-POSTRTG' } },
        { rule: { chain: 'FLANNEL-POSTRTG', handle: 3, expr: [comment, { return: null }] } },
        ...rules,
      ],
    })

  it('yields the chain and the jump to it', () => {
    expect(findFlannelNftRules('ip', 'nat', list(jumpTo('FLANNEL-POSTRTG', 7, comment), jumpTo('KUBE', 8)))).toEqual({
      rules: ['jump from POSTROUTING to FLANNEL-POSTRTG', 'chain FLANNEL-POSTRTG (1 rules)'],
      removal: [
        'delete rule ip nat POSTROUTING handle 7',
        'flush chain ip nat FLANNEL-POSTRTG',
        'delete chain ip nat FLANNEL-POSTRTG',
      ],
      stays: [],
    })
  })

  it.each([
    ['matches more', { match: {} }],
    ['uses another extension', { xt: { type: 'match', name: 'mark' } }],
  ])('leaves the chain without rules if a jump %s', (_title, expression) => {
    const { rules, removal, stays } = findFlannelNftRules('ip', 'nat', list(jumpTo('FLANNEL-POSTRTG', 9, expression)))
    expect(rules).toEqual(['rules of chain FLANNEL-POSTRTG (1 rules)'])
    expect(removal).toEqual(['flush chain ip nat FLANNEL-POSTRTG'])
    expect(stays).toEqual(['rule 9 of POSTROUTING, which jumps to FLANNEL-POSTRTG'])
  })

  it('recognises a jump whose comment an older nft does not print, and none from another chain', () => {
    const { removal } = findFlannelNftRules('ip', 'nat', list(jumpTo('FLANNEL-POSTRTG', 7, { xt: null })))
    expect(removal).toHaveLength(3)
    const elsewhere = { rule: { chain: 'OUTPUT', handle: 7, expr: [{ jump: { target: 'FLANNEL-POSTRTG' } }] } }
    expect(findFlannelNftRules('ip', 'nat', list(elsewhere))).toMatchObject({
      removal: ['flush chain ip nat FLANNEL-POSTRTG'],
      stays: ['rule 7 of OUTPUT, which jumps to FLANNEL-POSTRTG'],
    })
    expect(findFlannelNftRules('ip', 'nat', '{}')).toEqual({ rules: [], removal: [], stays: [] })
  })

  it('recognises a chain without a network, and its own rules in a chain that names others too', () => {
    const networks = new Set([N])
    expect(findFlannelNftRules('ip', 'nat', list(), networks).removal).toHaveLength(2)
    const net = (addr: string, handle: number) => ({
      rule: { chain: 'FLANNEL-POSTRTG', handle, expr: [{ match: { right: { prefix: { addr, len: 16 } } } }] },
    })
    expect(
      findFlannelNftRules('ip', 'nat', list(net('10.2.0.0', 4), net('10.1.0.0', 5)), networks).removal,
    ).toHaveLength(1)
  })

  it('leaves an excepted chain', () => {
    const net = (addr: string) => ({ match: { right: { prefix: { addr, len: 16 } } } })
    const rule = { rule: { chain: 'FLANNEL-POSTRTG', handle: 4, expr: [net('10.1.0.0'), comment, { return: null }] } }
    const found = (networks?: ReadonlySet<string>) => findFlannelNftRules('ip', 'nat', list(rule), networks)
    const removal = (networks?: ReadonlySet<string>) => found(networks).removal
    expect(found(new Set(['10.2.0.0/16']))).toEqual({ rules: [], removal: [], stays: [] })
    expect(removal(new Set([N]))).toHaveLength(2)
    expect(removal()).toHaveLength(2)
  })

  it("leaves a chain with another daemon's rules, and removes its own from it", () => {
    const rule = (handle: number, addr: string) => ({
      rule: { chain: 'FLANNEL-POSTRTG', handle, expr: [{ match: { right: { prefix: { addr, len: 48 } } } }, comment] },
    })
    const text = list(rule(4, 'fd00:1::'), rule(5, 'fd00:3::'), jumpTo('FLANNEL-POSTRTG', 7, comment))
    expect(findFlannelNftRules('ip6', 'nat', text, new Set(['fd00:1::/48']))).toEqual({
      rules: ['1 rules of chain FLANNEL-POSTRTG'],
      removal: ['delete rule ip6 nat FLANNEL-POSTRTG handle 4'],
      stays: [],
    })
    expect(findFlannelNftRules('ip6', 'nat', text).removal).toHaveLength(3)
  })

  it('yields nothing for an empty listing', () => {
    expect(findFlannelNftRules('ip', 'filter', list()).removal).toEqual([])
  })
})
