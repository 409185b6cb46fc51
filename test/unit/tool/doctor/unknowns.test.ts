// unknowns.test.ts - each check that was not possible has a reason, and the last line of weft doctor counts these checks.

import { expect, it } from 'vitest'
import type { Status } from '../../../../src/report/status.ts'
import { CHECKS, diagnose } from '../../../../src/tool/doctor/checks.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { toText } from '../../../../src/tool/weft/doctor.ts'
import { sound, soundStatus as status } from '../../../support/facts.ts'

const plain = (_tone: unknown, text: string): string => text
const whys = (part: Partial<Facts>): Record<string, string> =>
  Object.fromEntries(
    diagnose({ ...sound, ...part }).flatMap(({ check, findings, why }) =>
      findings === undefined ? [[check, why ?? '']] : [],
    ),
  )
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const lastLine = (part: Partial<Facts>): string =>
  toText(diagnose({ ...sound, ...part }), plain)
    .trimEnd()
    .split('\n')
    .at(-1)!

it.each<[string, Partial<Facts>, Record<string, RegExp>]>([
  [
    'neither tool can be read',
    { iptables: undefined, nft: undefined, isRoot: false },
    { firewall: /neither iptables nor nft can be read: run weft doctor as root/ },
  ],
  [
    'the store lets nobody in',
    { store: undefined, whyStoreUnknown: 'etcd: no TLS connection; check --etcd-cafile' },
    { config: /^etcd: no TLS connection; check --etcd-cafile$/ },
  ],
  ['the limits of neighbours are not seen', { neighbours: undefined }, { neighbours: /was not read/ }],
  [
    'there is no configuration yet',
    withStatus({ config: null, node: null }),
    { firewall: /^weftd has no network configuration yet$/, routes: /configuration/, store: /configuration/ },
  ],
  [
    'weftd may not be asked',
    { status: undefined, isForbidden: true, store: undefined },
    { peers: /^this user may not query weftd: run weft doctor as root$/ },
  ],
  [
    'weftd is dead, and nothing is left of it',
    { status: undefined, silence: 'no weftd answers', store: undefined },
    {
      peers: /^weftd does not answer \(no weftd answers\), and no earlier weftd left a status/,
      drops: /only a running weftd/,
    },
  ],
])('gives the reason if %s', (_name, part, expected) => {
  const found = whys(part)
  for (const [check, why] of Object.entries(expected)) expect(found[check], check).toMatch(why)
  for (const [check, why] of Object.entries(found)) expect(why, check).not.toBe('')
})

it('gives each check a reason of its own for each missing fact', () => {
  const nothing: Partial<Facts> = {
    status: undefined,
    store: undefined,
    neighbours: undefined,
    storeAheadMs: undefined,
  }
  const missing: readonly Partial<Facts>[] = [
    nothing,
    { ...nothing, isForbidden: true },
    { ...nothing, silence: 'dead' },
    ...(['config', 'node', 'dataPath', 'peers', 'lease'] as const).map((part) => withStatus({ [part]: null })),
    withStatus({ dataPath: { ...status.dataPath!, mtu: null } }),
    withStatus({ dataPath: { ...status.dataPath!, open: false } }),
    withStatus({ dataPath: { ...status.dataPath!, engine: 'none' } }),
    withStatus({ dataPath: { ...status.dataPath!, recent: null } }),
  ]
  for (const part of missing)
    for (const [check, why] of Object.entries(whys(part)))
      expect(why, check).not.toMatch(/^$|does not tell what it takes/)
  expect(CHECKS.map(({ name }) => name)).toContain('neighbours')
})

it('lists the impossible checks at the end', () => {
  expect(lastLine({})).toBe('nothing wrong found')
  expect(lastLine({ neighbours: undefined })).toBe('nothing wrong found; 1 check could not be made (neighbours)')
  expect(lastLine({ neighbours: undefined, iptables: undefined, nft: undefined })).toBe(
    'nothing wrong found; 2 checks could not be made (firewall, neighbours)',
  )
  expect(lastLine({ neighbours: undefined, iptables: '-P FORWARD DROP' })).toBe(
    '1 failure, 0 warnings; 1 check could not be made (neighbours)',
  )
  const text = toText(diagnose({ ...sound, status: undefined, silence: 'no socket' }), plain)
  expect(text.match(/no earlier weftd left a status/g)).toHaveLength(1)
  expect(text).toMatch(/^leases +unknown {2}for the same reason as \w+$/m)
  expect(toText(diagnose({ ...sound, neighbours: undefined }), plain)).toContain(
    "neighbours  unknown  the kernel's neighbour table was not read (`ip neighbour`)\n",
  )
})
