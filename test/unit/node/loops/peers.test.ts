// peers.test.ts - which peers the data path is given.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { sourceOf } from '../../../../src/control/lease/decode.ts'
import { managerOf } from '../../../../src/control/lease/store-manager.ts'
import type { Change, Entry } from '../../../../src/control/lease/subnet-manager.ts'
import { createBell } from '../../../../src/host/bell.ts'
import { applyPeers } from '../../../../src/node/loops/peers.ts'
import {
  installRig,
  backend,
  dataPaths,
  details,
  ended,
  holds,
  lines,
  log,
  logged,
  nodeStatus,
  ours,
  own,
  ready,
  start,
  stopping,
  store,
  told,
  until,
  value,
} from '../../../support/node-rig.ts'

installRig()

it('gives the data path all leases except its own, and logs added and removed peers', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  expect(dataPaths[0]!.applied.at(-1)).toEqual(['10.5.0.64-26'])
  const free = ['10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== own())!
  store.put(free, value('192.0.2.3'))
  await until(() => dataPaths[0]!.applied.at(-1)!.length === 2)
  store.remove('10.5.0.64-26')
  await until(() => dataPaths[0]!.applied.at(-1)!.length === 1)
  expect(dataPaths[0]!.applied.at(-1)).toEqual([free])
  const subnet = free.replace('-', '/')
  expect(lines.filter((line) => line.includes('I Subnet '))).toEqual([
    'I Subnet added: 10.5.0.64/26',
    `I Subnet added: ${subnet}`,
    'I Subnet removed: 10.5.0.64/26',
  ])
})

it('reports a lease of another node that overlaps its own lease, once for as long as it overlaps', async () => {
  start()
  await ready()
  const said = (key: string): number =>
    lines.filter((line) =>
      line.startsWith(`E Two nodes have one subnet: 192.0.2.9 leases ${key}, and this node ${own()}.`),
    ).length
  const part = own().replace('-26', '-28')
  store.put('10.5.0.0-24', value('192.0.2.9'))
  await until(() => said('10.5.0.0-24') === 1)
  store.put(part, value('192.0.2.9'))
  await until(() => said(part) === 1)
  // An older lease of its own overlaps too, but belongs to no other node.
  store.put(own().replace('-26', '-27'), ours)
  store.remove('10.5.0.0-24')
  await until(() => !dataPaths[0]!.applied.at(-1)!.includes('10.5.0.0-24'))
  expect([said('10.5.0.0-24'), said(part), lines.filter((line) => line.includes('Two nodes')).length]).toEqual([
    1, 1, 2,
  ])
  store.put('10.5.0.0-24', value('192.0.2.9'))
  await until(() => said('10.5.0.0-24') === 2)
})

it('does nothing if a peer renews its lease, and logs a peer whose lease changed', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  const before = dataPaths[0]!.applied.length
  store.put('10.5.0.64-26', value('192.0.2.2'))
  store.put('10.5.0.64-26', value('192.0.2.9'))
  await until(() => dataPaths[0]!.applied.length > before)
  expect(dataPaths[0]!.applied.length).toBe(before + 1)
  expect(lines.filter((line) => line.includes('Subnet added'))).toEqual(Array(2).fill('I Subnet added: 10.5.0.64/26'))
})

it('keeps the name of a peer if the lease of another node with the same public IP is removed', async () => {
  const manager = managerOf(store)
  const { source } = manager
  const renamed = ({ key, lease }: Entry): Entry => ({ key, lease: { ...lease!, name: `host-${key}` } })
  vi.spyOn(source, 'watch').mockImplementation(async function* (cursor, signal) {
    for await (const batch of sourceOf(store).watch(cursor as bigint, signal)) {
      const named = (change: Change): Change =>
        change.kind === 'put' ? { kind: 'put', entry: renamed(change.entry) } : change
      yield { ...batch, changes: batch.changes.map(named) }
    }
  })
  start({ manager })
  await ready()
  const [old, fresh] = ['10.6.0.0-24', '10.6.1.0-24']
  const applied = (): readonly string[] => dataPaths[0]!.applied.at(-1)!
  const names = async () => (await nodeStatus()).peers!.list.map(({ name }) => name)
  store.put(old, value('192.0.2.2'))
  await until(() => applied().join() === old)
  store.put(fresh, value('192.0.2.2'))
  await until(() => applied().length === 2)
  store.remove(old)
  await until(() => applied().join() === fresh)
  expect(await names()).toEqual([`host-${fresh}`])
})

it("logs flanneld's first and last lines about its loops at the same places as flanneld", async () => {
  start()
  await ready()
  stopping.abort(new Error('enough'))
  await ended
  const at = (line: string): number => lines.findIndex((each) => each === `I ${line}`)
  expect(at('Running backend.')).toBeGreaterThan(0)
  expect(at('Watching for new subnet leases')).toBe(at('Running backend.') + 1)
  expect(lines.at(-1)).toBe('I evts chan closed')
})

it('logs the lines that the backend has for its peers', async () => {
  const words = { watching: 'watching', added: () => ['one', 'two'], removed: () => ['three'] }
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ backend: { ...backend, words } })
  await ready()
  store.remove('10.5.0.64-26')
  await until(() => logged(/three/))
  expect(lines.filter((line) => /^I (watching|one|two|three)$/.test(line))).toEqual([
    'I watching',
    'I one',
    'I two',
    'I three',
  ])
})

it('keeps its peers when most of them vanish together, until a listing 30 s later still lacks them', async () => {
  start()
  await ready()
  for (const last of [64, 128, 192].filter((each) => !own().startsWith(`10.5.0.${each}`)))
    store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  store.put('10.6.0.0-26', value('192.0.2.7'))
  store.put('10.6.1.0-26', value('192.0.2.8'))
  const applied = (): number => dataPaths[0]!.applied.at(-1)!.length
  await until(() => applied() === 4)
  for (const key of Array.from(store.entries.keys())) if (key !== own()) store.remove(key)
  await until(() => logged(/E 4 of 4 leases vanished from the store at once/))
  await vi.advanceTimersByTimeAsync(29_000)
  expect(applied()).toBe(4)
  expect(told.at(-1)).toContain('4 peers kept although the store lacks them; ')
  expect(details()).toMatch(/4 peers kept .*; leases compared \d+ s ago; 0 repairs since the start$/)
  await until(() => logged(/W The store still lacks 4 leases; they are removed now/), 5_000)
  await until(() => applied() === 0)
  expect(holds()).toBe(1)
})

it('logs once that peers cannot be set, continues, and sets all peers as soon as possible', async () => {
  start()
  await ready()
  dataPaths[0]!.refusal = new WeftError('COMMAND', '`ip -batch` failed')
  const [one = '', two = ''] = ['10.5.0.64-26', '10.5.0.128-26', '10.5.0.192-26'].filter((key) => key !== own())
  store.put(one, value('192.0.2.2'))
  await until(() => logged(/^E Cannot set the peers of the data path: `ip -batch` failed; trying again$/))
  store.put(two, value('192.0.2.3'))
  await vi.advanceTimersByTimeAsync(60_000)
  expect(lines.filter((line) => line.includes('Cannot set the peers'))).toHaveLength(1)
  dataPaths[0]!.refusal = undefined
  await until(() => dataPaths[0]!.applied.at(-1)!.length === 2, 6_000)
  expect(dataPaths[0]!.applied.at(-1)).toEqual([one, two].toSorted())
  expect(dataPaths).toHaveLength(1)
})

it('gives missing peers only to the part that lacks them, and checks all parts when no part lacks peers', async () => {
  const given: (readonly string[] | undefined)[] = []
  const path = {
    isBehind: true,
    apply: async (_leases: unknown, _own: unknown, touched?: ReadonlySet<string>) =>
      void given.push(touched && [...touched]),
  }
  const doubt = createBell()
  const { signal } = new AbortController()
  const unseen = () => ({ keys: new Set<string>() as Set<string> | undefined })
  const node = {
    ownership: { dataPath: path, recheck: doubt, state: { is: 'forwarding' } },
    view: new Map(),
    lease: { key: 'own' },
    log,
    signal,
    unapplied: undefined,
    ownApplied: 'own',
    unprobed: unseen(),
    unsearched: unseen(),
    unchosen: unseen(),
  } as unknown as Parameters<typeof applyPeers>[0]
  await applyPeers(node, new Set(['a']))
  expect([node.unapplied, node.unprobed.keys]).toEqual(['rest', new Set(['a'])])
  // The device is checked soon, and later at the usual interval.
  expect(await doubt.wait(signal, 0)).toBe(true)
  await applyPeers(node, new Set(['b']))
  const waiting = doubt.wait(signal, 0)
  await vi.advanceTimersByTimeAsync(1)
  expect(await waiting).toBe(false)
  path.isBehind = false
  await applyPeers(node, new Set())
  expect(given).toEqual([['a'], ['b'], []])
  expect([node.unapplied, node.unprobed.keys, node.unsearched.keys, node.unchosen.keys]).toEqual(
    Array.from({ length: 4 }, () => undefined),
  )
})

it('judges all peers again if its own lease has changed since the last call', async () => {
  const given: (readonly [ownKey: string, touched: readonly string[] | undefined])[] = []
  const path = {
    apply: async (_leases: unknown, ...[ownKey, touched]: [string, ReadonlySet<string>?]) =>
      void given.push([ownKey, touched && [...touched]]),
  }
  const node = {
    ownership: { dataPath: path, recheck: createBell(), state: { is: 'forwarding' } },
    view: new Map(),
    lease: { key: 'here' },
    log,
    signal: new AbortController().signal,
    unapplied: undefined,
    ownApplied: undefined,
    unprobed: { keys: undefined },
    unsearched: { keys: undefined },
    unchosen: { keys: undefined },
  } as unknown as Parameters<typeof applyPeers>[0]
  for (const key of ['here', 'here', 'there', 'here']) {
    node.lease = { ...node.lease, key }
    await applyPeers(node, new Set(['a']))
  }
  expect(given).toEqual([
    ['here', undefined],
    ['here', ['a']],
    ['there', undefined],
    ['here', undefined],
  ])
})

it('applies no peers while the data path is lent, and all of them once it is back', async () => {
  const given: unknown[] = []
  const ownership = {
    dataPath: { apply: async (...[, , touched]: unknown[]) => void given.push(touched) },
    recheck: createBell(),
    state: { is: 'lent' },
  }
  const node = {
    ownership,
    view: new Map(),
    lease: { key: 'own' },
    log,
    signal: new AbortController().signal,
    unapplied: undefined,
    ownApplied: 'own',
    unprobed: { keys: undefined },
    unsearched: { keys: undefined },
    unchosen: { keys: undefined },
  } as unknown as Parameters<typeof applyPeers>[0]
  await applyPeers(node, new Set(['a']))
  expect([given, node.unapplied]).toEqual([[], 'all'])
  ownership.state.is = 'forwarding'
  await applyPeers(node, new Set())
  expect([given, node.unapplied]).toEqual([[undefined], undefined])
})
