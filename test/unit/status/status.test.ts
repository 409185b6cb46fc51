// status.test.ts - the numbers above the peers, and that docs/status.md has each field of the JSON and no other.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { countPeers, dropsOf, startingReport, type PeerStatus } from '../../../src/status/status.ts'
import { installRig, ready, start, nodeStatus, store, value, dataPaths, until } from '../../support/node-rig.ts'

installRig()

const peer = (state: PeerStatus['state'], probedSecondsAgo: number | null = null): PeerStatus => ({
  ...{
    lease: '10.5.2.0-24',
    subnet: '10.5.2.0/24',
    publicIp: '192.0.2.2',
    endpoint: null,
    way: null,
    type: '',
    state,
    held: false,
  },
  ...{ since: '', txPackets: 0, txBytes: 0, rxPackets: 0, rxBytes: 0, heardSecondsAgo: null, roundTripMs: null },
  ...{ lossPercent: null, probedSecondsAgo, pathMtu: null },
})

it.each([
  ['nobody', [], null, 1],
  ['nobody, probed', [], 10, 1],
  ['all programmed', [peer('programmed')], null, 1],
  ['one of two programmed', [peer('programmed'), peer('stored')], null, 0.5],
  ['none probed yet', [peer('programmed'), peer('programmed')], 10, 1],
  [
    'one of two that were probed answers, of four',
    [peer('answering', 1), peer('programmed', 1), peer('programmed'), peer('stored')],
    10,
    0.375,
  ],
] as const)('tells how whole the network is: %s', (_name, list, probeSeconds, whole) => {
  expect(countPeers(list, probeSeconds).whole).toBe(whole)
})

it('tells drops from other counters', () => {
  expect(dropsOf({ tx_packets: 5, tx_drop_ttl: 0, rx_drop_tun: 3 })).toEqual({ rx_drop_tun: 3 })
})

/** The names of all fields, `a.b[].c`; what is said of objects by the network or by counters is not the schema's. */
function fieldsOf(of: unknown, name = ''): string[] {
  const isOpen = ['config.backend', 'lease.published', 'dataPath.counters', 'dataPath.drops'].includes(name)
  if (typeof of !== 'object' || of === null || isOpen || name === 'dataPath.features') return [name]
  if (Array.isArray(of)) return of.length === 0 ? [] : fieldsOf(of[0], `${name}[]`)
  return Object.entries(of).flatMap(([key, each]) => fieldsOf(each, name === '' ? key : `${name}.${key}`))
}

it('has each field in docs/status.md, and there no other', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  dataPaths[0]!.rounds = { 'weft-loop0': 1 }
  let node = await nodeStatus()
  await until(() => {
    void nodeStatus().then((newest) => (node = newest))
    return node.dataPath!.threads.length === 1
  }, 3000)
  const page = readFileSync(join(packageRoot, 'docs/status.md'), 'utf8')
  const documented = [...page.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name = '']) => name)
  const fields = fieldsOf(node)
  expect(documented.filter((name) => name !== 'node' && !fields.includes(name))).toEqual([])
  expect(fields.filter((name) => !documented.includes(name))).toEqual([])
})

it('counts what nobody probes as not known, and what is not used as not probed', () => {
  const list = [peer('answering', 1), peer('programmed', 1), peer('stored', 1), peer('programmed')]
  expect(countPeers(list, 10)).toMatchObject({ stored: 4, programmed: 3, answering: 1, probed: 2, probeSeconds: 10 })
  expect(countPeers(list, null)).toMatchObject({ answering: null, probed: null, probeSeconds: null, whole: 0.75 })
})

it('is of a daemon that waits: nothing but its store and for what', () => {
  expect(startingReport('etcd', 'a lease')).toMatchObject({
    ...{ state: 'starting', trouble: 'a lease', repairs: 0, subnetFileWritten: false, node: null, peers: null },
    store: { name: 'etcd', reachable: false, comparedSecondsAgo: null, held: 0, holds: 0 },
  })
})
