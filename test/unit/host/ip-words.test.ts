// ip-words.test.ts - the command lines that weftd logs for changes of the kernel's network configuration.

import { expect, it } from 'vitest'
import { Secret } from '../../../src/base/secret.ts'
import { ruleText, wordsOf } from '../../../src/host/ip-words.ts'
import type { Change } from '../../../src/host/kernel.ts'
import { parseAddress, parseNet, type Address, type Net } from '../../../src/net/address.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'

const at = (text: string): Address => parseAddress(text)!
const net = (text: string): Net => parseNet(text)!
const device = { name: 'flannel.1', index: 7 }
const mac = '02:11:22:33:44:55'
const key = 'xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg='

const CASES: readonly (readonly [string, Change])[] = [
  [
    `ip link add flannel.1 address ${mac} type vxlan id 1 local 192.0.2.1 dev eth0 dstport 8472 nolearning gbp`,
    {
      kind: 'add link',
      link: {
        name: 'flannel.1',
        type: 'vxlan',
        mac,
        vxlan: { vni: 1, local: at('192.0.2.1'), underlay: { name: 'eth0' }, port: 8472, learning: false, gbp: true },
      },
    },
  ],
  [
    'ip link add flannel.probe type vxlan id 16777215 dstport 0',
    { kind: 'add link', link: { name: 'flannel.probe', type: 'vxlan', vxlan: { vni: 0xff_ffff, port: 0 } } },
  ],
  [
    'ip link add v mtu 1450 type vxlan id 2 local fd00::1 dstport 4789 learning',
    {
      kind: 'add link',
      link: {
        name: 'v',
        type: 'vxlan',
        mtu: 1450,
        vxlan: { vni: 2, local: at('fd00::1'), port: 4789, learning: true },
      },
    },
  ],
  [
    'ip link add flannel.ipip type ipip local 192.0.2.1 nopmtudisc',
    { kind: 'add link', link: { name: 'flannel.ipip', type: 'ipip', ipip: { local: parseIpv4('192.0.2.1')! } } },
  ],
  [
    'ip link set dev flannel.ipip type ipip local 192.0.2.1 nopmtudisc',
    { kind: 'set link', device: { name: 'flannel.ipip' }, ipip: { local: parseIpv4('192.0.2.1')! } },
  ],
  ['ip link add flannel-wg type wireguard', { kind: 'add link', link: { name: 'flannel-wg', type: 'wireguard' } }],
  [
    'ip link add a mtu 9000 type veth peer name b mtu 9001',
    { kind: 'add link', link: { name: 'a', type: 'veth', mtu: 9000, peer: { name: 'b', mtu: 9001 } } },
  ],
  [
    `ip link set dev flannel.1 address ${mac} mtu 1450 txqueuelen 1000 up`,
    { kind: 'set link', device, mac, mtu: 1450, queueLength: 1000, up: true },
  ],
  ['ip link set dev flannel.1 down', { kind: 'set link', device, up: false }],
  ['ip link del dev flannel.1', { kind: 'delete link', device }],
  [
    'ip address replace 10.5.2.0/32 dev flannel.1',
    { kind: 'replace address', device, address: at('10.5.2.0'), prefixLength: 32 },
  ],
  [
    'ip address replace fd00:5::/128 dev flannel.1 nodad',
    { kind: 'replace address', device, address: at('fd00:5::'), prefixLength: 128, noDad: true },
  ],
  [
    'ip address del fd00:5::/64 dev flannel.1',
    { kind: 'delete address', device, address: at('fd00:5::'), prefixLength: 64, noDad: true },
  ],
  [
    'ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink',
    { kind: 'replace route', destination: net('10.5.2.0/24'), gateway: at('10.5.2.0'), device, onlink: true },
  ],
  [
    'ip -6 route add default via fe80::1 dev flannel.1 table 100 proto static src fd00::9 metric 1024',
    {
      kind: 'add route',
      destination: net('::/0'),
      gateway: at('fe80::1'),
      device,
      table: 100,
      protocol: 'static',
      source: at('fd00::9'),
      metric: 1024,
    },
  ],
  [
    'ip route add 10.5.0.0/16 via inet6 fe80::1 dev flannel.1 scope link',
    { kind: 'add route', destination: net('10.5.0.0/16'), gateway: at('fe80::1'), device, scope: 'link' },
  ],
  [
    'ip route del blackhole 10.5.1.0/24 metric 4294967295',
    { kind: 'delete route', type: 'blackhole', destination: net('10.5.1.0/24'), metric: 0xffffffff },
  ],
  [
    'ip rule add priority 219 iif eth0 from 10.5.0.0/16 to 10.5.0.0/16 blackhole',
    {
      kind: 'add rule',
      family: 'ipv4',
      priority: 219,
      iif: 'eth0',
      from: net('10.5.0.0/16'),
      to: net('10.5.0.0/16'),
      action: 'blackhole',
    },
  ],
  [
    'ip -6 rule del priority 5 lookup 100',
    { kind: 'delete rule', family: 'ipv6', priority: 5, action: { table: 100 } },
  ],
  [
    `ip neigh replace 10.5.2.0 lladdr ${mac} dev flannel.1 nud permanent`,
    { kind: 'replace neighbour', device, address: at('10.5.2.0'), mac },
  ],
  ['ip neigh del fd00:5:: dev flannel.1', { kind: 'delete neighbour', device, address: at('fd00:5::') }],
  [
    `bridge fdb replace ${mac} dev flannel.1 dst 192.0.2.2 self permanent`,
    { kind: 'replace forwarding', device, mac, host: at('192.0.2.2') },
  ],
  [
    `bridge fdb del ${mac} dev flannel.1 dst fd00::2 self`,
    { kind: 'delete forwarding', device, mac, host: at('fd00::2') },
  ],
  [
    `wg set flannel.1 listen-port 51820 private-key (hidden) peer ${key} preshared-key (hidden) endpoint [fd00::2]:51820 ` +
      `persistent-keepalive 25 allowed-ips 10.5.2.0/24,fd00:5:2::/64 peer ${key} remove`,
    {
      kind: 'set wireguard',
      device,
      privateKey: new Secret('a private key'),
      port: 51820,
      peers: [
        {
          publicKey: key,
          presharedKey: new Secret('a preshared key'),
          endpoint: { address: at('fd00::2'), port: 51820 },
          keepaliveSeconds: 25,
          allowedIps: [net('10.5.2.0/24'), net('fd00:5:2::/64')],
        },
        { publicKey: key, isRemoved: true, allowedIps: [] },
      ],
    },
  ],
  [
    `wg set flannel.1 private-key /dev/null peer ${key} preshared-key /dev/null persistent-keepalive 0 allowed-ips ''`,
    {
      kind: 'set wireguard',
      device,
      privateKey: new Secret(''),
      peers: [{ publicKey: key, presharedKey: new Secret(''), keepaliveSeconds: 0, allowedIps: [] }],
    },
  ],
]

it.each(CASES)('writes %s', (words, change) => {
  expect(wordsOf(change)).toBe(words)
})

it('quotes names of interfaces that a shell or a terminal would misread', () => {
  const named = (name: string): string => wordsOf({ kind: 'delete link', device: { name } })
  expect(named('a;reboot')).toBe("ip link del dev 'a;reboot'")
  expect(named("it's")).toBe(String.raw`ip link del dev 'it'\''s'`)
  expect(named('\u001b[2J')).toBe(String.raw`ip link del dev '\u001b[2J'`)
})

it('writes policy rules as `ip rule` prints them', () => {
  const rule = {
    priority: 5270,
    table: 52,
    action: 'lookup',
    iif: undefined,
    oif: undefined,
    from: undefined,
    to: undefined,
    mark: undefined,
    mask: 0xffffffff,
    isInverted: false,
  }
  expect(ruleText(rule)).toBe('5270: from all lookup 52')
  expect(ruleText({ ...rule, table: 254, from: net('10.5.0.0/16'), to: net('10.6.0.1/32'), iif: 'a', oif: 'b' })).toBe(
    '5270: from 10.5.0.0/16 to 10.6.0.1 iif a oif b lookup main',
  )
  expect(ruleText({ ...rule, table: undefined, action: 'prohibit', mark: 16, mask: 255, isInverted: true })).toBe(
    '5270: not from all fwmark 0x10/0xff prohibit',
  )
  const parts = { protocol: 6, sport: [7, 7], dport: [80, 90], tos: 16, dscp: 46, tunnel: 5n } as const
  expect(ruleText({ ...rule, part: parts })).toBe(
    '5270: from all tos 0x10 ipproto tcp sport 7 dport 80-90 dscp 46 tun_id 5 lookup 52',
  )
  expect(ruleText({ ...rule, part: { protocol: 132 } })).toBe('5270: from all ipproto 132 lookup 52')
})
