// peer-words.test.ts - flanneld's log lines for the leases of peers, for each family.

import { expect, it } from 'vitest'
import { decodeLease } from '../../../../src/control/lease/decode.ts'
import { addedLines, hostWords } from '../../../../src/path/backends/peer-words.ts'

const BOTH = ['ipv4', 'ipv6'] as const
const ADDRESSES = '{"PublicIP":"192.0.2.2","PublicIPv6":"fd77::2"}'
const [V4, V6] = ['10.5.2.0/24 via 192.0.2.2', 'fd05:0:0:2::/64 via fd77::2']

it.each([
  // The lines of flanneld v0.28.10 with host-gw in a dual-stack network.
  [BOTH, '10.5.2.0-24&fd05:0:0:2::-64', ADDRESSES, [V4, V6]],
  [BOTH, '10.5.2.0-24', '{"PublicIP":"192.0.2.2"}', [V4]],
  [['ipv4'] as const, '10.5.2.0-24&fd05:0:0:2::-64', ADDRESSES, [V4]],
  [['ipv6'] as const, '10.5.2.0-24&fd05:0:0:2::-64', ADDRESSES, [V6]],
  [['ipv4'] as const, '0.0.0.0-0&fd05:0:0:2::-64', ADDRESSES.replace('192.0.2.2', '0.0.0.0'), [V6]],
  [BOTH, '10.5.2.0-24&fd05:0:0:2::-64', '{"PublicIP":"192.0.2.2"}', [V4]],
  [BOTH, '10.5.2.0-24', '{}', ['10.5.2.0/24 via 0.0.0.0']],
])('in a network with %j the lease %s with %s has the lines %j', (families, key, value, texts) => {
  const { added, removed } = hostWords(families)
  const lease = decodeLease(key, value)
  expect(added(lease)).toEqual(texts.map((text) => `Subnet added: ${text}`))
  expect(removed(lease)).toEqual(texts.map((text) => `Subnet removed: ${text.replace(/ via .*/, '')}`))
})

it('the line of an added lease names no end of a tunnel that is unknown', () => {
  expect(addedLines(decodeLease('10.5.2.0-24', ADDRESSES), BOTH, () => undefined)).toEqual([
    'Subnet added: 10.5.2.0/24',
  ])
})
