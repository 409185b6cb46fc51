// network-config.test.ts - flannel's test vectors (pkg/subnet/config_test.go), its error messages, and properties of the parser.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import {
  carryIpv4Alone,
  ipv4For,
  parseNetworkConfig,
  requireFamily,
} from '../../../../src/control/config/network-config.ts'
import { pickSubnet } from '../../../../src/control/lease/allocate.ts'
import { formatNet } from '../../../../src/net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4Net, ipv4NetContains, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { formatIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'

const range = (text: string): string => {
  const { subnetMin, subnetMax, subnetLength } = parseNetworkConfig(text).ipv4!
  return `${formatIpv4(subnetMin)} ${formatIpv4(subnetMax)} /${subnetLength}`
}

describe('network configuration', () => {
  it("has flannel's defaults", () => {
    expect(range('{ "network": "10.3.0.0/16" }')).toBe('10.3.1.0 10.3.255.0 /24')
    expect(range('{ "Network": "10.3.0.0/23" }')).toBe('10.3.0.128 10.3.1.128 /25')
    expect(parseNetworkConfig('{"Network":"10.3.0.0/16"}').backendType).toBe('udp')
  })

  it.each([
    ...[1, 8, 16, 20, 21, 22].map((prefix) => [prefix, 24] as const),
    ...[23, 24, 25, 26, 27, 28].map((prefix) => [prefix, prefix + 2] as const),
  ])('cuts a /%i into subnets of /%i, from the second to the last', (prefix, length) => {
    const { network, subnetMin, subnetMax, subnetLength } = parseNetworkConfig(
      `{"Network":"128.0.0.0/${prefix}"}`,
    ).ipv4!
    expect(subnetLength).toBe(length)
    expect(subnetMin - network.address).toBe(2 ** (32 - length))
    expect(subnetMax - network.address).toBe(2 ** (32 - prefix) - 2 ** (32 - length))
  })

  it.each([
    ['fc00::/48', 'fc00:0:0:1:: fc00:0:0:ffff:: /64'],
    ['fc00::/62', 'fc00:0:0:1:: fc00:0:0:3:: /64'],
    ['fc00::/63', 'fc00::8000:0:0:0 fc00:0:0:1:8000:: /65'],
    ['fc00::/124', 'fc00::4 fc00::c /126'],
  ])('cuts %s into %s', (network, expected) => {
    const { ipv6 } = parseNetworkConfig(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"${network}"}`)
    expect(`${formatIpv6(ipv6!.subnetMin)} ${formatIpv6(ipv6!.subnetMax)} /${ipv6!.subnetLength}`).toBe(expected)
  })

  it('clears the host bits, and does not compare SubnetMin with SubnetMax', () => {
    expect(formatIpv4Net(parseNetworkConfig('{"Network":"10.0.1.0/16"}').ipv4!.network)).toBe('10.0.0.0/16')
    const text = '{"Network":"10.3.0.0/16","SubnetMin":"10.3.9.0","SubnetMax":"10.3.8.0"}'
    expect(range(text)).toBe('10.3.9.0 10.3.8.0 /24')
    expect(pickSubnet(parseNetworkConfig(text).ipv4!, [], Math.random)).toBeUndefined()
  })

  it('treats an empty address as absent, as Go does', () => {
    expect(range('{"Network":"10.3.0.0/16","SubnetMin":"0.0.0.0","SubnetMax":""}')).toBe('10.3.1.0 10.3.255.0 /24')
  })

  it('keeps the given range and length', () => {
    expect(range('{"Network":"10.3.0.0/16","SubnetMin":"10.3.5.0","SubnetMax":"10.3.8.0","SubnetLen":28}')).toBe(
      '10.3.5.0 10.3.8.0 /28',
    )
  })

  it('reads keys in any case, lets the last one win, and ignores unknown ones', () => {
    const config = parseNetworkConfig(
      '{"NETWORK":"10.1.0.0/16","network":"10.2.0.0/16","whatever":1,"backend":{"TYPE":"VXLAN","VNI":7}}',
    )
    expect(formatIpv4Net(config.ipv4!.network)).toBe('10.2.0.0/16')
    expect(config.backendType).toBe('vxlan')
    expect(config.backend['vni']).toBe(7)
  })

  it('has an empty type for a backend without a type', () => {
    expect(parseNetworkConfig('{"Network":"10.3.0.0/16","Backend":{}}').backendType).toBe('')
  })

  it('reads IPv6 as flannel does', () => {
    const { ipv6 } = parseNetworkConfig('{ "enableIPv6": true, "ipv6Network": "fc00::/48", "enableIPv4": false }')
    expect([formatIpv6(ipv6!.subnetMin), formatIpv6(ipv6!.subnetMax), ipv6!.subnetLength]).toEqual([
      'fc00:0:0:1::',
      'fc00:0:0:ffff::',
      64,
    ])
    const given = parseNetworkConfig(
      '{"EnableIPv6":true,"IPv6Network":"fc00::/48","IPv6SubnetMin":"fc00:0:0:1::","IPv6SubnetMax":"fc00:0:0:f::","IPv6SubnetLen":124,"enableIPv4":false}',
    ).ipv6
    expect([formatIpv6(given!.subnetMin), formatIpv6(given!.subnetMax), given!.subnetLength]).toEqual([
      'fc00:0:0:1::',
      'fc00:0:0:f::',
      124,
    ])
  })

  it.each([
    ['', 'not valid JSON'],
    ['{', 'not valid JSON'],
    ['[]', 'instead of an object'],
    ['{}', 'please define a correct Network parameter in the flannel config'],
    ['null', 'please define a correct Network parameter in the flannel config'],
    ['{"Network":"10.0.0.0/0"}', 'please define a correct Network parameter in the flannel config'],
    ['{"Network":"fc00::/48"}', 'Network is "fc00::/48"'],
    ['{"Network":7}', 'Network is number 7'],
    ['{"Network":"10.0.0.0/29"}', 'network is too small. Minimum useful network prefix is /28'],
    ['{"Network":"10.0.0.0/16","SubnetLen":31}', 'SubnetLen must be less than /31'],
    ['{"Network":"10.0.0.0/16","SubnetLen":17}', 'network must be able to accommodate at least four subnets'],
    ['{"Network":"10.0.0.0/16","SubnetLen":-1}', 'SubnetLen is number -1'],
    ['{"Network":"10.0.0.0/16","SubnetMin":"10.1.0.0"}', 'SubnetMin is not in the range of the Network'],
    ['{"Network":"10.0.0.0/16","SubnetMax":"10.1.0.0"}', 'SubnetMax is not in the range of the Network'],
    ['{"Network":"10.0.0.0/16","SubnetMin":"10.0.1.1"}', 'SubnetMin is not on a SubnetLen boundary: 10.0.1.1'],
    ['{"Network":"10.0.0.0/16","SubnetMax":"10.0.1.1"}', 'SubnetMax is not on a SubnetLen boundary: 10.0.1.1'],
    [
      '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/125"}',
      'IPv6Network is too small. Minimum useful network prefix is /124',
    ],
    [
      '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48","IPv6SubnetLen":127}',
      'SubnetLen must be less than /127',
    ],
    [
      '{"Network":"127.5.0.0/16"}',
      'Network is 127.5.0.0/16, which is loopback (127.0.0.0/8): no container is reached there',
    ],
    ['{"Network":"224.0.0.0/4"}', 'Network is 224.0.0.0/4, which is multicast (224.0.0.0/4)'],
    ['{"Network":"239.255.0.0/16"}', 'Network is 239.255.0.0/16, which is multicast (224.0.0.0/4)'],
    ...['fe80::/10', 'fe80:5::/48', 'febf:ffff::/32'].map((net) => [
      `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"${net}"}`,
      `IPv6Network is ${net}, which is link-local (fe80::/10): no container is reached there`,
    ]),
    [
      '{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"ff05::/48"}',
      'IPv6Network is ff05::/48, which is multicast (ff00::/8)',
    ],
    ...[
      ['::ffff:10.5.0.0/112', '::ffff:a05:0/112', '::ffff:0:0/96'],
      ['::10.5.0.0/112', '::a05:0/112', '::/96'],
    ].map(([net, said, around]) => [
      `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"${net}"}`,
      `IPv6Network is ${said}, which is for embedded IPv4 addresses (${around}): no container is reached there`,
    ]),
    ['{"Network":"10.0.0.0/16","Backend":"udp"}', 'Backend is string'],
  ])('refuses %s', (text, message) => {
    try {
      parseNetworkConfig(text)
      expect.unreachable()
    } catch (error) {
      expect(error).toBeInstanceOf(WeftError)
      expect((error as WeftError).code).toBe('CONFIG')
      expect((error as WeftError).message).toContain(message)
      expect((error as WeftError).remedy).toBeTruthy()
    }
  })

  it.each(['126.0.0.0/8', '128.0.0.0/16', '223.255.0.0/16', '240.0.0.0/8'])(
    'accepts %s, which is next to a range that hosts cannot have',
    (net) => expect(formatNet(parseNetworkConfig(`{"Network":"${net}"}`).ipv4!.network)).toBe(net),
  )
  it.each(['fe7f::/48', 'fec0::/48', 'feff::/48'])(
    'accepts %s, which is next to a range that hosts cannot have',
    (net) =>
      expect(
        formatNet(parseNetworkConfig(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"${net}"}`).ipv6!.network),
      ).toBe(net),
  )

  it.each([
    ['224.0.0.0/3', '{"Network":"224.0.0.0/3"}'],
    ['fe80::/9', '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fe80::/9"}'],
  ])('accepts %s, because only a part of it is a range that hosts cannot have', (net, text) => {
    const { ipv4, ipv6 } = parseNetworkConfig(text)
    expect(formatNet((ipv4 ?? ipv6)!.network)).toBe(net)
  })

  it('needs no range if the subnets are given', () => {
    const text = '{"Network":"10.5.0.0/29","SubnetLen":31,"SubnetMin":"10.9.0.0"}'
    expect(() => parseNetworkConfig(text)).toThrow('SubnetLen must be less than /31')
    expect(parseNetworkConfig(text, { areGiven: true })).toMatchObject({ ipv4: { network: { prefixLength: 29 } } })
    expect(() => parseNetworkConfig('{}', { areGiven: true })).toThrow('please define a correct Network parameter')
  })

  it('hands out subnets inside the network only', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 0xffffffff }), fc.integer({ min: 1, max: 28 }), (address, length) => {
        const network = ipv4Net(address, length)
        fc.pre(!/^(127|22[4-9]|23\d)\./.test(formatIpv4Net(network))) // hosts cannot have these addresses
        const cut = parseNetworkConfig(JSON.stringify({ Network: formatIpv4Net(network) })).ipv4!
        expect(cut.network).toEqual(network)
        expect(ipv4NetContains(network, cut.subnetMin)).toBe(true)
        expect(ipv4NetContains(network, cut.subnetMax)).toBe(true)
        expect(cut.subnetMin).toBeLessThanOrEqual(cut.subnetMax)
        expect(ipv4Net(cut.subnetMin, cut.subnetLength).address).toBe(cut.subnetMin)
      }),
    )
  })
})

describe('at the limits', () => {
  const v6 = (more: object): ReturnType<typeof parseNetworkConfig>['ipv6'] =>
    parseNetworkConfig(JSON.stringify({ EnableIPv4: false, EnableIPv6: true, ...more })).ipv6

  it.each([
    [{ Network: '10.0.0.0/16', SubnetLen: 30 }, '10.0.0.4 10.0.255.252 /30'],
    [{ Network: '10.0.0.0/16', SubnetLen: 18 }, '10.0.64.0 10.0.192.0 /18'],
    // SubnetMin and SubnetMax may be the first and the last subnet of the network.
    [{ Network: '10.0.0.0/16', SubnetMin: '10.0.0.0', SubnetMax: '10.0.255.0' }, '10.0.0.0 10.0.255.0 /24'],
    [{ Network: '10.0.0.0/16', SubnetLen: null, SubnetMin: null }, '10.0.1.0 10.0.255.0 /24'],
    [{ Network: '10.0.0.0/16', SubnetLen: 0 }, '10.0.1.0 10.0.255.0 /24'],
    [{ Network: '0.0.0.0/1' }, '0.0.1.0 127.255.255.0 /24'],
  ])('%j has the subnets %s', (config, expected) => expect(range(JSON.stringify(config))).toBe(expected))

  it.each([
    [{ IPv6Network: 'fc00::/48', IPv6SubnetLen: 126 }, 'fc00::4', 126],
    [{ IPv6Network: 'fc00::/48', IPv6SubnetLen: 50 }, 'fc00:0:0:4000::', 50],
    [{ IPv6Network: 'fc00::/48', IPv6SubnetMin: 'fc00::' }, 'fc00::', 64],
    [{ IPv6Network: 'fc00::/48', IPv6SubnetMin: '::' }, 'fc00:0:0:1::', 64],
  ])('%j starts with the subnet %s', (config, first, length) => {
    const own = v6(config)!
    expect([formatIpv6(own.subnetMin), own.subnetLength]).toEqual([first, length])
  })

  it.each([
    ['{"Network":"10.0.0.0/16","SubnetMax":"10.1.0.0"}', 'SubnetMax is not in the range of the Network'],
    ['{"Network":"10.1.0.0/16","SubnetMin":"10.0.255.0"}', 'SubnetMin is not in the range of the Network'],
    ['{"Network":"10.0.0.0/16","SubnetMin":"10.0"}', 'SubnetMin is "10.0"; it must be an IPv4 address'],
    ['{"Network":"10.0.0.0/16","SubnetMax":"fc00::"}', 'SubnetMax is "fc00::"; it must be an IPv4 address'],
    ['{"Network":"10.0"}', 'Network is "10.0"; it must be an IPv4 network such as 10.5.0.0/16'],
    ['{"Network":"10.0.0.0/16","SubnetLen":"24"}', 'SubnetLen is string "24"; it must be a whole number'],
    ['{"Network":"10.0.0.0/16","SubnetLen":24.5}', 'SubnetLen is number 24.5; it must be a whole number'],
    ['{"Network":"10.0.0.0/16","SubnetLen":[24]}', 'SubnetLen is array [24]; it must be a whole number'],
    ['{"Network":"10.0.0.0/16","EnableIPv4":1}', 'EnableIPv4 is number 1; it must be true or false'],
    ['{"Network":"10.0.0.0/16","EnableIPv6":"no"}', 'EnableIPv6 is string "no"; it must be true or false'],
    ['{"Network":"10.0.0.0/16","EnableNFTables":"yes"}', 'EnableNFTables is string "yes"; it must be true or false'],
    ['{"Network":"10.0.0.0/16","Backend":[]}', 'Backend is array; it must be an object'],
    ['{"Network":"10.0.0.0/16","Backend":true}', 'Backend is bool; it must be an object'],
    ['{"Network":"10.0.0.0/16","Backend":{"Type":{}}}', 'Type is object {}; it must be a string'],
    ['"x"', 'the network configuration is not valid JSON: it is string instead of an object'],
    ['true', 'the network configuration is not valid JSON: it is bool instead of an object'],
    [
      '{"Network":"10.0.0.0/16","EnableIPv6":true}',
      'please define a correct IPv6Network parameter in the flannel config',
    ],
    [
      '{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"::/0"}',
      'please define a correct IPv6Network parameter in the flannel config',
    ],
    [
      '{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"10.0.0.0/8"}',
      'IPv6Network is "10.0.0.0/8"; it must be an IPv6 network such as fc00::/48',
    ],
    ...(
      [
        ['"IPv6SubnetMin":"fc00:0:1::"', 'IPv6SubnetMin is not in the range of the IPv6Network'],
        ['"IPv6SubnetMin":"fbff::"', 'IPv6SubnetMin is not in the range of the IPv6Network'],
        ['"IPv6SubnetMax":"fc00:0:1::"', 'IPv6SubnetMax is not in the range of the IPv6Network'],
        ['"IPv6SubnetMin":"fc00::1"', 'IPv6SubnetMin is not on a SubnetLen boundary: fc00::1'],
        ['"IPv6SubnetMax":"fc00::1"', 'IPv6SubnetMax is not on a SubnetLen boundary: fc00::1'],
        ['"IPv6SubnetMin":"x"', 'IPv6SubnetMin is "x"; it must be an IPv6 address'],
        ['"IPv6SubnetMax":"x"', 'IPv6SubnetMax is "x"; it must be an IPv6 address'],
        ['"IPv6SubnetLen":49', 'network must be able to accommodate at least four subnets'],
        ['"IPv6SubnetLen":true', 'IPv6SubnetLen is bool true; it must be a whole number'],
      ] as const
    ).map(([given, message]): [string, string] => [
      `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48",${given}}`,
      message,
    ]),
  ] as const)('%s is refused in these words', (text, message) => {
    expect(() => parseNetworkConfig(text)).toThrow(expect.objectContaining({ code: 'CONFIG', message }))
  })

  it('requires the network of an enabled family only, and no range if the subnets are given', () => {
    expect(parseNetworkConfig('{"EnableIPv4":false,"Network":"10.5.0.0/16"}')).toEqual({
      enableNftables: false,
      backendType: 'udp',
      backend: {},
    })
    expect(
      parseNetworkConfig('{"Network":"10.5.0.0/16","EnableNFTables":true,"IPv6Network":"fc00::/48"}'),
    ).toMatchObject({
      enableNftables: true,
      ipv4: { network: parseIpv4Net('10.5.0.0/16') },
      ipv6: undefined,
    })
    const text = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/127","Backend":null}'
    const { ipv4, ipv6 } = parseNetworkConfig(text, { areGiven: true })
    expect(ipv4).toEqual({ network: parseIpv4Net('10.5.0.0/16'), subnetLength: 0, subnetMin: 0, subnetMax: 0 })
    expect(ipv6).toEqual({ network: parseIpv6Net('fc00::/127'), subnetLength: 0, subnetMin: 0n, subnetMax: 0n })
  })

  it('shows an example of a network if the network is missing or wrong', () => {
    const refused = (text: string) => {
      try {
        return parseNetworkConfig(text)
      } catch (error) {
        return error
      }
    }
    const example = 'for example {"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
    expect(refused('{}')).toMatchObject({ remedy: `add the parameter, ${example}` })
    expect(refused('{"Network":7}')).toMatchObject({ remedy: `correct the network configuration, ${example}` })
    // If IPv6 is wrong, the example is an IPv6 network.
    const ipv6 = 'for example "IPv6Network":"fd00:5::/48"'
    for (const members of [
      '"IPv6Network":7',
      '"IPv6Network":"10.5.0.0/16"',
      '"IPv6Network":"fe80::/48"',
      '"IPv6Network":"fc00::/125"',
      '"IPv6Network":"fc00::/48","IPv6SubnetLen":127',
      '"IPv6Network":"fc00::/48","IPv6SubnetLen":49',
      '"IPv6Network":"fc00::/48","IPv6SubnetLen":"64"',
      '"IPv6Network":"fc00::/48","IPv6SubnetMin":7',
      '"IPv6Network":"fc00::/48","IPv6SubnetMin":"fd00::"',
      '"IPv6Network":"fc00::/48","IPv6SubnetMax":"fc00::1"',
    ])
      expect(refused(`{"Network":"10.5.0.0/16","EnableIPv6":true,${members}}`), members).toMatchObject({
        remedy: `correct the network configuration, ${ipv6}`,
      })
  })
})

describe('an address family', () => {
  const ipv4 = '"Network":"10.5.0.0/16"'
  const ipv6 = '"EnableIPv6":true,"IPv6Network":"fc00::/48"'

  it.each([['{"EnableIPv4":false}', 'none defined stack', 'set "EnableIPv4": true']])(
    'is refused in %s',
    (text, message, remedy) => {
      expect(() => requireFamily(parseNetworkConfig(text))).toThrow(
        expect.objectContaining({ code: 'CONFIG', message, remedy: expect.stringContaining(remedy) }),
      )
    },
  )

  it('is returned if it is enabled; otherwise an error names the caller that needs it', () => {
    const config = parseNetworkConfig(`{${ipv4}}`)
    requireFamily(config)
    expect(ipv4For('udp', config)).toBe(config.ipv4)
    expect(ipv4For('udp', { ipv4: 0 })).toBe(0)
    expect(() => ipv4For('the ipip backend', parseNetworkConfig(`{"EnableIPv4":false,${ipv6}}`))).toThrow(
      expect.objectContaining({
        code: 'CONFIG',
        message: 'the ipip backend needs IPv4, and EnableIPv4 is false',
        remedy: 'set "EnableIPv4": true, or take udp, vxlan, host-gw or wireguard, which carry IPv6',
      }),
    )
  })

  it('is named in a warning if the network has it and the backend does not carry it', () => {
    const warningsOf = (text: string) => {
      const warnings: string[] = []
      carryIpv4Alone('the ipip backend', parseNetworkConfig(text), { warn: (line) => void warnings.push(line) })
      return warnings
    }
    expect(warningsOf(`{${ipv4},${ipv6}}`)).toEqual([
      'the ipip backend carries IPv4 alone: nothing carries fc00::/48 to other hosts; udp, vxlan, host-gw or wireguard would',
    ])
    expect(warningsOf(`{${ipv4}}`)).toEqual([])
    expect(() => warningsOf(`{"EnableIPv4":false,${ipv6}}`)).toThrow('the ipip backend needs IPv4')
  })
})
