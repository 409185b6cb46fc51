// rules.test.ts - the complete input of iptables-restore and nft, against flanneld's rules (its e2e tests list them).

import { describe, expect, it } from 'vitest'
import { formatNet, parseNet, type Family } from '../../../../src/net/address.ts'
import { FLANNEL_CHAINS, isAnothers } from '../../../../src/path/firewall/flannel-rules.ts'
import {
  iptablesRules,
  nftInput,
  nftRemoval,
  nftTable,
  oursIn,
  restoreInput,
  splitNftTable,
  type FirewallWish,
} from '../../../../src/path/firewall/rules.ts'
import { asIpv6 } from '../../../support/as-ipv6.ts'

const [POSTRTG, FWD] = FLANNEL_CHAINS
const NETS = {
  ipv4: { network: parseNet('10.42.0.0/16')!, subnet: parseNet('10.42.7.0/24')! },
  ipv6: { network: parseNet('fd00:42::/48')!, subnet: parseNet('fd00:42:0:7::/64')! },
}
const wish = (masq: boolean, forward: boolean, randomFully: boolean, family: Family = 'ipv4'): FirewallWish => ({
  ...NETS[family],
  masq,
  forward,
  randomFully,
})
const restoreTexts = (wanted: FirewallWish): string[] =>
  FLANNEL_CHAINS.flatMap((chain) => {
    const rules = iptablesRules(chain, wanted)
    return rules ? [restoreInput(chain, rules, [])] : []
  })

const MASQ = (masquerade: string): string => `*nat
:FLANNEL-POSTRTG - [0:0]
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.7.0/24 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.0.0/16 -d 10.42.7.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.7.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.42.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j ${masquerade}
-A FLANNEL-POSTRTG ! -s 10.42.0.0/16 -d 10.42.0.0/16 -m comment --comment "flanneld masq" -j ${masquerade}
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
COMMIT
`
const FORWARD = `*filter
:FLANNEL-FWD - [0:0]
-A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.42.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
COMMIT
`

const NFT_MASQ = (masquerade: string): string => `  chain postrtg {
    comment "chain to manage traffic masquerading by flannel"
    type nat hook postrouting priority srcnat; policy accept;
    meta mark 0x4000 return
    ip saddr 10.42.7.0/24 ip daddr 10.42.0.0/16 return
    ip saddr 10.42.0.0/16 ip daddr 10.42.7.0/24 return
    ip saddr != 10.42.0.0/16 ip daddr 10.42.7.0/24 return
    ip saddr 10.42.0.0/16 ip daddr != 224.0.0.0/4 ${masquerade}
    ip saddr != 10.42.0.0/16 ip daddr 10.42.0.0/16 ${masquerade}
  }
`
const NFT_FORWARD = `  chain forward {
    comment "chain to accept flannel traffic"
    type filter hook forward priority filter; policy accept;
    ip saddr 10.42.0.0/16 accept
    ip daddr 10.42.0.0/16 accept
  }
`
const NFT = (chains: string): string => `add table ip flannel-ipv4 { comment "rules for flannel-ipv4"; }
add chain ip flannel-ipv4 postrtg
flush chain ip flannel-ipv4 postrtg
delete chain ip flannel-ipv4 postrtg
add chain ip flannel-ipv4 forward
flush chain ip flannel-ipv4 forward
delete chain ip flannel-ipv4 forward
table ip flannel-ipv4 {
${chains}}
`

describe.each([
  [true, 'MASQUERADE --random-fully', 'masquerade fully-random'],
  [false, 'MASQUERADE', 'masquerade'],
])('with random-fully %s', (randomFully, iptables, nft) => {
  it.each([
    [true, true, [MASQ(iptables), FORWARD], NFT(NFT_MASQ(nft) + NFT_FORWARD)],
    [true, false, [MASQ(iptables)], NFT(NFT_MASQ(nft))],
    [false, true, [FORWARD], NFT(NFT_FORWARD)],
    [false, false, [], NFT('')],
  ])('masquerade %s and forward rules %s give these texts', (masq, forward, restore, script) => {
    expect(restoreTexts(wish(masq, forward, randomFully))).toEqual(restore)
    expect(nftInput(wish(masq, forward, randomFully))).toBe(script)
    const six = wish(masq, forward, randomFully, 'ipv6')
    expect(restoreTexts(six)).toEqual(restore.map(asIpv6))
    expect(nftInput(six)).toBe(asIpv6(script))
  })
})

describe('restoreInput', () => {
  it('removes every jump to the chain and the given rules, and adds one jump at the end', () => {
    const table = [
      ':POSTROUTING ACCEPT [0:0]',
      ':FLANNEL-POSTRTG - [0:0]',
      '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
      '-A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE',
      '-A POSTROUTING -j FLANNEL-POSTRTG',
      '-A FLANNEL-POSTRTG -j RETURN',
    ]
    const ours = oursIn(table, POSTRTG)
    expect(ours).toEqual([table[2], table[4], table[5]])
    expect(restoreInput(POSTRTG, ['-j ACCEPT'], ours, ['-D POSTROUTING -s 10.1.0.0/16 -j FLANNEL'])).toBe(`*nat
-D POSTROUTING -s 10.1.0.0/16 -j FLANNEL
:FLANNEL-POSTRTG - [0:0]
-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-D POSTROUTING -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -j ACCEPT
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
COMMIT
`)
    expect(oursIn(table, FWD)).toEqual([])
  })
})

describe('the rules of another daemon on the host', () => {
  const rulesOf = (lines: string): string[] => lines.split('\n').filter((line) => line.startsWith('-A FLANNEL'))
  const inChains = rulesOf(restoreTexts(wish(true, true, true)).join(''))
  const mark = inChains[0]!

  it.each([
    ['its own', '10.42.0.0/16', []],
    ["another's", '10.5.0.0/16', inChains.filter((line) => line !== mark)],
  ])('in iptables, seen by a daemon for which the network is %s', (_, network, expected) => {
    expect(inChains).toHaveLength(6 + 2)
    expect(inChains.filter((line) => isAnothers(line, new Set([network])))).toEqual(expected)
  })

  it('in ip6tables, seen by another daemon', () => {
    const six = rulesOf(restoreTexts(wish(true, true, true, 'ipv6')).join(''))
    expect(six).toEqual(inChains.map(asIpv6))
    expect(six.filter((line) => isAnothers(line, new Set(['fd00:42::/48'])))).toEqual([])
    expect(six.filter((line) => isAnothers(line, new Set(['fd00:5::/48', '10.42.0.0/16'])))).toHaveLength(5 + 2)
  })

  it.each([
    '-A FLANNEL-FWD -j ACCEPT',
    '-A FLANNEL-FWD -s 10.42.0.0/16 -j ACCEPT',
    '-A FLANNEL-FWD -s 10.42.0.0/16 -p tcp -m comment --comment "flanneld forward" -j ACCEPT',
    '-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
    '\t\tip saddr 10.42.0.0/16 counter packets 0 bytes 0 accept',
    '\t\tmeta mark 0x00004000 return',
    '\t\tip6 saddr fd00:42::/48 ip daddr 10.42.0.0/16 return',
    '\t\tip7 saddr fd00:42::/48 accept',
  ])('do not include a similar rule: %s', (line) => {
    expect(isAnothers(line, new Set(['10.5.0.0/16']))).toBe(false)
  })

  it('in nftables are searched only in flannel’s chains', () => {
    const shown = nftInput(wish(true, true, true))
    const foreign = `  chain theirs {
    ip saddr 10.5.0.0/16 accept
    meta mark 1 return
  }
  set addresses {
    type ipv4_addr
  }
`
    const ours = new Set(['10.42.0.0/16'])
    for (const name of ['postrtg', 'forward']) {
      const mixed = shown.replace(`  chain ${name} {`, `${foreign}  chain ${name} {`)
      expect(mixed).not.toBe(shown)
      expect(splitNftTable(mixed, ours)).toEqual(splitNftTable(shown, ours))
    }
  })

  it.each([
    ['ipv4', '10.42.0.0/16', { network: '10.5.0.0/16', subnet: '10.5.1.0/24' }],
    ['ipv6', 'fd00:42::/48', { network: 'fd00:5::/48', subnet: 'fd00:5:0:1::/64' }],
  ] as const)('in nftables of %s stand after our own, in the chain where they were', (family, theirs, mine) => {
    const shown = nftInput(wish(true, true, true, family))
    const { own, others } = splitNftTable(shown, new Set([mine.network]))
    expect([others.postrtg.length, others.forward.length]).toEqual([5, 2])
    expect(splitNftTable(shown, new Set([theirs]))).toEqual({ own: shown, others: { postrtg: [], forward: [] } })
    const ours = { ...wish(true, false, true), network: parseNet(mine.network)!, subnet: parseNet(mine.subnet)! }
    const both = nftInput(ours, others)
    expect(splitNftTable(both, new Set([mine.network])).others).toEqual(others)
    expect(splitNftTable(both, new Set([theirs])).own).toBe(shown)
    expect(own).not.toMatch(/10\.42\.|fd00:42:/)
  })
})

it('nft creates an empty table for a family that is off, like flanneld', () => {
  expect(nftTable('ipv4')).toBe('add table ip flannel-ipv4 { comment "rules for flannel-ipv4"; }\n')
  expect(nftTable('ipv6')).toBe('add table ip6 flannel-ipv6 { comment "rules for flannel-ipv6"; }\n')
})

describe('nft removal', () => {
  const OURS = new Set(['10.42.0.0/16'])
  const EMPTY = 'table ip6 flannel-ipv6 {\n}\n'
  const listing = (family: Family, text: string) => ({ family, text, ours: OURS })
  /** A table with the rules of several daemons one after another. */
  const table = (...wishes: readonly FirewallWish[]): string =>
    wishes.reduce((text, each) => nftInput(each, splitNftTable(text, new Set([formatNet(each.network)])).others), '')
  const own = wish(true, true, true)
  const other = { ...own, network: parseNet('10.6.0.0/16')!, subnet: parseNet('10.6.1.0/24')! }

  it('removes the existing tables, and is empty if there are none', () => {
    expect(nftRemoval([listing('ipv4', table(own)), listing('ipv6', '')])).toBe(
      'add table ip flannel-ipv4\ndelete table ip flannel-ipv4\n',
    )
    expect(nftRemoval([listing('ipv4', table(own)), listing('ipv6', EMPTY)]).match(/delete table/g)).toHaveLength(2)
    expect(nftRemoval([listing('ipv4', ''), listing('ipv6', '')])).toBe('')
  })

  const forwardOnly = { ...other, masq: false }
  it.each<[string, FirewallWish[]]>([
    ['beside ours', [own, other]],
    ['before ours', [other, own]],
    ['beside ours, without masquerading', [own, forwardOnly]],
    ['alone', [other]],
    ['alone, without masquerading', [forwardOnly]],
  ])('removes no rule and no table of another daemon: %s', (_where, wishes) => {
    const input = nftRemoval([listing('ipv4', table(...wishes)), listing('ipv6', EMPTY)])
    // The other daemon's rules are set again without weft's rules. If no rule is weft's, nothing changes.
    const theirs = wishes.find(({ network }) => network === other.network)!
    expect(input).toBe(wishes.length === 1 ? '' : nftInput(theirs).replace(nftTable('ipv4'), ''))
  })

  it("removes weft's IPv4 and IPv6 rules from tables that another daemon shares", () => {
    const own6 = wish(true, true, true, 'ipv6')
    const other6 = { ...own6, network: parseNet('fd00:6::/48')!, subnet: parseNet('fd00:6:0:1::/64')! }
    const input = nftRemoval([
      listing('ipv4', table(own, other)),
      { family: 'ipv6', text: table(own6, other6), ours: new Set(['fd00:42::/48']) },
    ])
    const chains = nftInput(other).replace(nftTable('ipv4'), '')
    expect(input).toBe(chains + nftInput(other6).replace(nftTable('ipv6'), ''))
  })

  it('does not rebuild a chain for a rule that an operator added beside those of another daemon', () => {
    const rule = '    iifname "eth1" ip saddr 192.0.2.0/24 drop\n'
    const text = table(other).replace('    meta mark', `${rule}    meta mark`)
    expect(text).toContain(rule)
    expect(nftRemoval([listing('ipv4', text)])).toBe('')
  })
})

it('keeps the rules of another daemon if this one wants none, and creates no empty chain', () => {
  const { others } = splitNftTable(nftInput(wish(true, true, true)), new Set(['10.5.0.0/16']))
  const alone = nftInput(wish(false, false, false), others)
  expect(splitNftTable(alone, new Set(['10.5.0.0/16'])).others).toEqual(others)
  const rules = alone.split('\n').filter((line) => line.startsWith('    ') && !/^ +(comment|type|meta) /.test(line))
  expect(rules.map((line) => line.trim())).toEqual([...others.postrtg, ...others.forward])
  expect(nftInput(wish(false, false, false), { postrtg: others.postrtg, forward: [] })).not.toContain('chain forward {')
  expect(nftInput(wish(false, false, false), { postrtg: [], forward: others.forward })).not.toContain('chain postrtg {')
})

it('rules after a foreign chain are still recognised', () => {
  const shown = nftInput(wish(true, true, true))
  const last = '  chain theirs {\n    ip saddr 10.5.0.0/16 accept\n  }\n'
  const mixed = shown.replace(/\}\n$/, `${last}}\n`)
  expect(mixed).not.toBe(shown)
  const ours = new Set(['10.42.0.0/16'])
  expect(splitNftTable(mixed, ours)).toEqual(splitNftTable(shown, ours))
  // Replaces the indentation by tabs, as nft prints them.
  const tabs = (text: string): string => text.replaceAll(/^ {2}( {2})?/gm, (spaces) => '\t'.repeat(spaces.length / 2))
  expect(splitNftTable(tabs(mixed), ours)).toEqual(splitNftTable(tabs(shown), ours))
})
