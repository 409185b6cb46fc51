// plan.test.ts - planOf: which keys another configuration changes, and how many nodes it cuts off.

import { expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { planOf } from '../../../../src/control/config/plan.ts'

const KEY = `${'A'.repeat(42)}A=`
const OTHER = `${'B'.repeat(42)}A=`
const LONG = 'only for tests. '.repeat(6)
const config = (backend: object, head: object = {}) =>
  parseNetworkConfig(JSON.stringify({ Network: '10.5.0.0/16', ...head, Backend: backend }))

/** A `Backend` object of the type `http`, whose requests have texts, objects and secrets. */
const http = (more: object) => ({ Type: 'http', PutURL: 'http://switch/', ...more })

it.each<[string, object, object, readonly string[], readonly string[], number]>([
  ['nothing', { Type: 'udp' }, { Type: 'udp', Port: 0 }, ['', ''], [], 0],
  ['nothing beside a key', { Type: 'wireguard', PSK: KEY }, { Type: 'wireguard', PSK: KEY }, ['wireguard'], [], 0],
  [
    'nothing beside objects',
    http({ PutBody: { routes: ['a', null, { token: 'b' }] }, Headers: { 'X-Auth-Token': 'c' } }),
    http({ PutBody: { routes: ['a', null, { token: 'b' }] }, Headers: { 'X-Auth-Token': 'c' } }),
    ['http'],
    [],
    0,
  ],
  [
    'the backend',
    { Type: 'udp', Port: 9 },
    { Type: 'vxlan', VNI: 7 },
    ['', '', ''],
    ['Backend.Type: udp -> vxlan', 'Backend.VNI: 1 -> 7'],
    3,
  ],
  [
    'the backend to one with a key',
    { Type: 'vxlan', Port: 9 },
    { Type: 'wireguard', PSK: KEY },
    ['vxlan'],
    ['Backend.Type: vxlan -> wireguard', 'Backend.PSK: none -> <hidden>'],
    1,
  ],
  [
    'a first key',
    { Type: 'wireguard' },
    { Type: 'wireguard', PSK: KEY },
    ['wireguard'],
    ['Backend.PSK: none -> <hidden>'],
    1,
  ],
  [
    'the backend, which some nodes have already',
    { Type: 'udp' },
    { Type: 'vxlan' },
    ['', 'vxlan', ''],
    ['Backend.Type: udp -> vxlan'],
    2,
  ],
  [
    'the backend, while a node has neither the old nor the new one',
    { Type: 'udp' },
    { Type: 'vxlan' },
    ['', 'vxlan', 'ipip'],
    ['Backend.Type: udp -> vxlan'],
    2,
  ],
  [
    'the backend to one that publishes the same data',
    { Type: 'udp' },
    { Type: 'alloc' },
    ['', ''],
    ['Backend.Type: udp -> alloc'],
    2,
  ],
  [
    'the backend to one with a required key',
    { Type: 'vxlan' },
    { Type: 'ipsec', PSK: LONG },
    ['vxlan'],
    ['Backend.Type: vxlan -> ipsec', 'Backend.PSK: none -> <hidden>'],
    1,
  ],
  [
    'the backend from one with a required key',
    { Type: 'ipsec', PSK: LONG },
    { Type: 'vxlan' },
    ['ipsec'],
    ['Backend.Type: ipsec -> vxlan'],
    1,
  ],
  [
    'a required key',
    { Type: 'ipsec', PSK: LONG },
    { Type: 'ipsec', PSK: `${LONG}.` },
    ['ipsec'],
    ['Backend.PSK: <hidden> -> <hidden>'],
    1,
  ],
  ['the port', { Type: 'udp' }, { Type: 'udp', Port: 9000 }, ['', ''], ['Backend.Port: 0 -> 9000'], 2],
  ['the VNI', { Type: 'vxlan' }, { Type: 'vxlan', VNI: 2 }, ['vxlan'], ['Backend.VNI: 1 -> 2'], 1],
  [
    'the filter of sources',
    { Type: 'udp' },
    { Type: 'udp', VerifySource: 'off' },
    [''],
    ['Backend.VerifySource: strict -> off'],
    0,
  ],
  [
    'the data path',
    { Type: 'vxlan' },
    { Type: 'vxlan', DataPath: 'kernel' },
    ['vxlan'],
    ['Backend.DataPath: none -> kernel'],
    0,
  ],
  [
    'the key',
    { Type: 'wireguard', PSK: KEY },
    { Type: 'wireguard', PSK: OTHER },
    ['wireguard'],
    ['Backend.PSK: <hidden> -> <hidden>'],
    1,
  ],
  [
    'the key to none',
    { Type: 'wireguard', PSK: KEY },
    { Type: 'wireguard' },
    ['wireguard'],
    ['Backend.PSK: <hidden> -> none'],
    1,
  ],
  [
    'a text from none',
    http({}),
    http({ ListURL: 'http://switch/list' }),
    ['http'],
    ['Backend.ListURL: none -> http://switch/list'],
    0,
  ],
  [
    'a list from none',
    { Type: 'aws-vpc' },
    { Type: 'aws-vpc', RouteTableID: 'rtb-1' },
    [''],
    ['Backend.RouteTableID: none -> ["rtb-1"]'],
    0,
  ],
  [
    'a list',
    { Type: 'aws-vpc', RouteTableID: ['rtb-1'] },
    { Type: 'aws-vpc', RouteTableID: ['rtb-1', 'rtb-2'] },
    [''],
    ['Backend.RouteTableID: ["rtb-1"] -> ["rtb-1","rtb-2"]'],
    0,
  ],
  [
    'a null in an object',
    http({ PutBody: { id: null } }),
    http({ PutBody: { id: 1 } }),
    ['http'],
    ['Backend.PutBody: {"id":null} -> {"id":1}'],
    0,
  ],
  [
    'an empty list in an object to an empty object',
    http({ PutBody: { routes: [] } }),
    http({ PutBody: { routes: {} } }),
    ['http'],
    ['Backend.PutBody: {"routes":[]} -> {"routes":{}}'],
    0,
  ],
  [
    'a secret in an object',
    http({ Headers: { 'X-Auth-Token': 'a' } }),
    http({ Headers: { 'X-Auth-Token': 'b' } }),
    ['http'],
    ['Backend.Headers: {"X-Auth-Token":"<hidden>"} -> {"X-Auth-Token":"<hidden>"}'],
    0,
  ],
])('plans a change of %s', (_what, before, after, published, changes, cut) => {
  expect(planOf(config(before), config(after), published)).toMatchObject({ changes, cut })
})

it('describes the effects of a change of the network', () => {
  const wider = planOf(config({ Type: 'udp' }), config({ Type: 'udp' }, { Network: '10.4.0.0/15' }), [''])
  expect(wider).toEqual({
    changes: ['Network: 10.5.0.0/16 -> 10.4.0.0/15', 'SubnetMin: 10.5.1.0 -> 10.4.1.0'],
    cut: 0,
    effects: [],
  })
  const dual = { EnableIPv6: true, IPv6Network: 'fd00:5::/48', EnableNFTables: true }
  const { changes, cut } = planOf(config({ Type: 'vxlan' }), config({ Type: 'vxlan' }, dual), ['vxlan'])
  expect(changes).toEqual([
    'IPv6Network: none -> fd00:5::/48',
    'IPv6SubnetLen: none -> 64',
    'IPv6SubnetMin: none -> fd00:5:0:1::',
    'IPv6SubnetMax: none -> fd00:5:0:ffff::',
    'EnableNFTables: false -> true',
  ])
  expect(cut).toBe(0)
})

it.each<[string, object, object, readonly string[]]>([
  [
    'udp to wireguard',
    { Type: 'udp' },
    { Type: 'wireguard' },
    [
      'the MTU of containers changes from 1472 to 1420 bytes, if the external interface has 1500; make new containers, or lower the MTU of their bridge',
      'firewalls between the nodes must accept UDP port 51820 before weftd restarts',
    ],
  ],
  [
    'wireguard to host-gw',
    { Type: 'wireguard' },
    { Type: 'host-gw' },
    ['the MTU of containers changes from 1420 to 1500 bytes, if the external interface has 1500'],
  ],
  [
    'another port',
    { Type: 'udp' },
    { Type: 'udp', Port: 9000 },
    ['firewalls between the nodes must accept UDP port 9000 before weftd restarts'],
  ],
  [
    'ipip',
    { Type: 'vxlan', MTU: 1470 },
    { Type: 'ipip' },
    [
      'the MTU of containers changes from 1420 to 1480 bytes, if the external interface has 1500',
      'firewalls between the nodes must accept IP protocol 4 (IPIP) before weftd restarts',
    ],
  ],
  ['a key', { Type: 'wireguard' }, { Type: 'wireguard', PSK: KEY }, []],
])('names another MTU and another port: %s', (_what, before, after, effects) =>
  expect(planOf(config(before), config(after), ['']).effects).toEqual(effects),
)

it('considers that the IPv6 header is longer', () => {
  const dual = { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
  expect(planOf(config({ Type: 'vxlan' }), config({ Type: 'vxlan' }, dual), ['vxlan']).effects).toEqual([
    expect.stringContaining('from 1450 to 1430 bytes'),
  ])
})

it.each<[string, object, object, object, string | undefined]>([
  ['IPv6 is added', { Type: 'wireguard' }, { Type: 'wireguard' }, {}, 'UDP ports 51820 and 51821'],
  [
    'both ports change',
    { Type: 'vxlan' },
    { Type: 'wireguard', ListenPort: 7, ListenPortV6: 8 },
    {},
    'UDP ports 7 and 8',
  ],
  ['one device carries both', { Type: 'wireguard', Mode: 'auto' }, { Type: 'wireguard', Mode: 'auto' }, {}, undefined],
  ['there is only IPv6', { Type: 'vxlan' }, { Type: 'wireguard' }, { EnableIPv4: false }, 'UDP port 51821'],
  ['udp uses one port', { Type: 'udp' }, { Type: 'udp' }, {}, undefined],
])('names the port of the IPv6 device of wireguard: %s', (_what, before, after, head, ports) => {
  const dual = { EnableIPv6: true, IPv6Network: 'fd00:5::/48', ...head }
  const { effects } = planOf(config(before), config(after, dual), [''])
  const said = effects.flatMap((effect) => /accept (UDP .*) before weftd restarts$/.exec(effect)?.[1] ?? [])
  expect(said).toEqual(ports === undefined ? [] : [ports])
})

it('plans a change from and to a backend type that weft does not know', () => {
  const [unknown, vxlan] = [config({ Type: 'vxlna', VNI: 7 }), config({ Type: 'vxlan', VNI: 7 })]
  expect(planOf(unknown, vxlan, ['', 'vxlan'])).toEqual({
    changes: ['Backend.Type: vxlna -> vxlan', 'Backend.VNI: 1 -> 7'],
    cut: 1,
    effects: ['firewalls between the nodes must accept UDP port 8472 before weftd restarts'],
  })
  expect(planOf(vxlan, unknown, ['', 'vxlan'])).toEqual({
    changes: ['Backend.Type: vxlan -> vxlna'],
    cut: 2,
    effects: [],
  })
})
