// nodes.test.ts - nodes as a source of leases, and this host's own node, with a mock API: single answers and events more or less.

import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Ask, KubeClient, WatchEvent } from '../../../../src/control/kube/api-client.ts'
import { annotationNames } from '../../../../src/control/kube/node-lease.ts'
import { NodeSource } from '../../../../src/control/kube/node-source.ts'
import { OwnNode } from '../../../../src/control/kube/own-node.ts'
import { LeaseView } from '../../../../src/control/lease/fail-static.ts'
import type { Change } from '../../../../src/control/lease/subnet-manager.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'

const P = 'flannel.alpha.coreos.com'
const names = annotationNames(P)
const { signal } = new AbortController()
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }

const node = (name: string, uid: string, version: string, podCIDR?: string) => ({
  metadata: {
    name,
    uid,
    resourceVersion: version,
    annotations: { [`${P}/kube-subnet-manager`]: 'true', [`${P}/public-ip`]: '192.0.2.1' },
  },
  ...(podCIDR === undefined ? {} : { spec: { podCIDR } }),
})

/** A client whose requests `answer` answers. Each watch brings the next list of events, and then the API server is unavailable. */
function apiOf(answer: (ask: Ask) => unknown, ...watches: readonly (readonly WatchEvent[])[]) {
  const asked: Readonly<Record<string, string>>[] = []
  const rest = [...watches]
  const client: KubeClient = {
    ask: async <T>(ask: Ask) => answer(ask) as T,
    async *watch(_path, query) {
      asked.push(query)
      const events = rest.shift()
      if (!events) throw new WeftError('STORE_UNAVAILABLE', 'away')
      yield []
      for (const event of events) yield [event]
    },
    close() {},
  }
  return { client, asked }
}
const nothing = (): undefined => undefined

describe('the nodes', () => {
  async function watch(client: KubeClient, after: bigint) {
    const batches: { cursor: bigint; kinds: string[] }[] = []
    const watching = async (): Promise<void> => {
      for await (const { cursor, changes } of new NodeSource(client, names).watch(after, signal))
        batches.push({ cursor, kinds: changes.map(({ kind }) => kind) })
    }
    await expect(watching()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    return batches
  }

  it('are watched from the last bookmark, so a quiet cluster is not listed again', async () => {
    const bookmark = { type: 'BOOKMARK', object: { metadata: { resourceVersion: '150' } } }
    const { client, asked } = apiOf(nothing, [bookmark])
    expect((await watch(client, 100n)).at(-1)).toEqual({ cursor: 150n, kinds: [] })
    expect(asked.map(({ resourceVersion }) => resourceVersion)).toEqual(['100', '150'])
  })

  it('never give the subnet of a recreated node to the deleted node of that name', async () => {
    const added = { type: 'ADDED', object: node('a', 'old', '101') }
    const { client } = apiOf(() => node('a', 'new', '103', '10.5.3.0/24'), [added])
    expect(await watch(client, 100n)).toEqual([
      { cursor: 100n, kinds: [] },
      { cursor: 101n, kinds: [] },
    ])
    const same = apiOf(() => node('a', 'old', '103', '10.5.3.0/24'), [added])
    expect((await watch(same.client, 100n)).at(-1)).toEqual({ cursor: 101n, kinds: ['put'] })
  })

  it('count as unavailable if their listing expires between two pages, which is not a gap in the watch', async () => {
    const first = {
      metadata: { resourceVersion: '100', continue: 'more' },
      items: [node('a', 'a', '7', '10.5.1.0/24')],
    }
    const { client } = apiOf(({ query }) => {
      if (query?.['continue'] === undefined) return first
      throw new WeftError('GAP', 'the continue token is too old')
    })
    await expect(new NodeSource(client, names).list(signal)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
  })

  /** Two nodes of one host. The host was renamed from `z` to `a`, and has kept its podCIDR. */
  const renamed = (name: 'z' | 'a', version: string, annotations = {}) => {
    const { metadata, ...rest } = node(name, `${name}1`, version, '10.5.1.0/24')
    const creationTimestamp = name === 'z' ? '2026-01-01T00:00:00Z' : '2026-02-01T00:00:00Z'
    return {
      ...rest,
      metadata: { ...metadata, creationTimestamp, annotations: { ...metadata.annotations, ...annotations } },
    }
  }
  const unmanaged = { [`${P}/kube-subnet-manager`]: 'false' }
  const shown = (change: Change): string =>
    change.kind === 'put' ? `${change.entry.key} ${change.entry.lease?.name}` : `${change.key} deleted`

  it('with one podCIDR give the lease of the node that was created last, in a listing and in the watch', async () => {
    const items = [renamed('a', '7'), renamed('z', '9')]
    const event = (type: string, object: unknown): WatchEvent => ({ type, object })
    const { client } = apiOf(
      () => ({ metadata: { resourceVersion: '100' }, items }),
      [
        event('MODIFIED', renamed('z', '101')),
        event('DELETED', renamed('z', '102')),
        event('ADDED', renamed('z', '103')),
        event('MODIFIED', renamed('z', '104', unmanaged)),
        event('MODIFIED', renamed('z', '105')),
        event('DELETED', renamed('a', '106')),
        event('MODIFIED', renamed('z', '107', unmanaged)),
      ],
    )
    const source = new NodeSource(client, names)
    const { entries } = await source.list(signal)
    expect(entries.map(({ lease }) => lease?.name)).toEqual(['a'])
    const changes: string[] = []
    const watching = async (): Promise<void> => {
      for await (const batch of source.watch(100n, signal)) changes.push(...batch.changes.map(shown))
    }
    await expect(watching()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(changes).toEqual([
      ...Array<string>(5).fill('10.5.1.0-24 a'), // the older node changes nothing
      '10.5.1.0-24 z',
      '10.5.1.0-24 deleted',
    ])
  })

  it('keep the state that the watch reported during a listing, even if the listing has an older state', async () => {
    let answer!: (page: unknown) => void
    const page = new Promise((resolve) => (answer = resolve))
    const gone = { type: 'DELETED', object: renamed('a', '101') }
    const changed = { type: 'MODIFIED', object: renamed('z', '102', { [`${P}/public-ip`]: '192.0.2.2' }) }
    const { client } = apiOf(() => page, [gone, changed], [{ type: 'DELETED', object: renamed('a', '103') }])
    const source = new NodeSource(client, names)
    const listing = source.list(signal)
    const watching = source.watch(100n, signal)
    for (let batches = 0; batches < 3; batches++) await watching.next()
    answer({ metadata: { resourceVersion: '100' }, items: [renamed('a', '7'), renamed('z', '9')] })
    expect((await listing).entries.map(({ lease }) => lease?.name)).toEqual(['a'])
    await watching.next()
    const { value } = await watching.next()
    expect(value.changes).toMatchObject([
      { kind: 'put', entry: { lease: { name: 'z', attrs: { publicIp: { ipv4: 0xc0000202 } } } } },
    ])
  })

  it('report a deletion again if the watch failed before it delivered the deletion', async () => {
    const added = { type: 'ADDED', object: node('b', 'b1', '102') }
    const events = [{ type: 'DELETED', object: node('a', 'a1', '101') }, added]
    let isBusy = true
    const { client } = apiOf(({ path }) => {
      if (path === '/api/v1/nodes')
        return { metadata: { resourceVersion: '100' }, items: [node('a', 'a1', '7', '10.5.1.0/24')] }
      if (isBusy) throw new WeftError('STORE_UNAVAILABLE', 'busy')
      return node('b', 'b1', '102', '10.5.2.0/24')
    })
    /** Delivers both events together, as an API server may after a new watch. */
    async function* watchOnce(): AsyncGenerator<readonly WatchEvent[]> {
      yield events
      throw new WeftError('STORE_UNAVAILABLE', 'away')
    }
    const source = new NodeSource({ ...client, watch: watchOnce }, names)
    await source.list(signal)
    await expect(source.watch(100n, signal).next()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    isBusy = false
    const { value } = await source.watch(100n, signal).next()
    expect(value.changes.map(shown)).toEqual(['10.5.1.0-24 deleted', '10.5.2.0-24 b'])
  })

  const V6 = { [`${P}/public-ipv6`]: 'fd00::1', [`${P}/backend-v6-data`]: '{"VNI":1}' }
  const IPV4 = { [`${P}/backend-type`]: 'vxlan', [`${P}/backend-data`]: '{"VtepMAC":"1"}' }

  it.each([
    ['has invalid data', { ...IPV4, [`${P}/backend-data`]: '{"VtepMAC":' }, [0xc0000201, { VtepMAC: '1' }], 1],
    ['has an invalid address', { ...IPV4, [`${P}/public-ip`]: 'junk' }, [0xc0000201, { VtepMAC: '1' }], 1],
    ['has an invalid address and another type', { [`${P}/public-ip`]: 'junk' }, [undefined, undefined], 1],
    ['is missing', { ...IPV4, [`${P}/public-ip`]: '' }, [undefined, undefined], 0],
  ])('keep the last valid values of a family that %s, and use the other family', async (_what, wrong, ipv4, logged) => {
    const dual = (version: string, annotations: object) => {
      const { metadata } = node('a', 'a1', version)
      const spec = { podCIDR: '10.5.1.0/24', podCIDRs: ['10.5.1.0/24', 'fd00:5:0:1::/64'] }
      return { metadata: { ...metadata, annotations: { ...metadata.annotations, ...V6, ...annotations } }, spec }
    }
    const lines: string[] = []
    const warn = (line: string): void => void lines.push(line)
    const view = new LeaseView({ holdMs: 1000, ownKey: () => '', log: { ...log, warn } })
    const listed = async (...annotations: object[]) => {
      const items = [dual('7', Object.assign({}, ...annotations))]
      const { client } = apiOf(() => ({ metadata: { resourceVersion: '100' }, items }))
      view.list((await new NodeSource(client, names).list(signal)).entries, 0)
      const { publicIp, backendData } = [...view.leases.values()][0]!.attrs
      return { ipv4: [publicIp.ipv4, backendData], ipv6: publicIp.ipv6 }
    }
    expect(await listed(wrong)).toMatchObject({ ipv4: [undefined, undefined] })
    expect(lines).toHaveLength(logged)
    await listed(IPV4)
    const moved = { [`${P}/public-ipv6`]: 'fd00::2' }
    for (let times = 0; times < 2; times++)
      expect(await listed(wrong, moved)).toEqual({ ipv4, ipv6: parseIpv6('fd00::2') })
    expect(lines).toHaveLength(2 * logged)
    for (const line of lines)
      expect(line).toMatch(/^Ignoring bad subnet node: 10\.5\.1\.0-24&fd00:5:0:1::-64: node a: /)
  })

  it.each([10, 400, 5_000])('are listed rarely enough that %d of them cost at most 7 KB a second', (count) => {
    /** The size of one node in bytes, most of which are the images that kubelet reports. */
    const NODE_BYTES = 20_000
    const source = new NodeSource(apiOf(nothing).client, names)
    expect((count * NODE_BYTES) / (source.trustedMs(count) / 1000)).toBeLessThan(7_000)
  })
})

it('reports that the network is up until the API server accepts it, once per node, and again for a recreated node', async () => {
  let present = node('a', 'first', '7', '10.5.1.0/24')
  let refuses = true
  let patches = 0
  const { client } = apiOf(({ method }) => {
    if (method === 'GET') return { metadata: { resourceVersion: '100' }, items: [present] }
    patches++
    if (refuses) throw new WeftError('STORE_UNAVAILABLE', 'busy')
    return {}
  })
  const own = new OwnNode({ client, names, name: 'a', log })
  await own.published(signal)
  for (const count of [1, 2]) {
    await expect(own.ready(signal)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    expect(patches).toBe(count)
  }
  refuses = false
  for (let times = 0; times < 3; times++) await own.ready(signal)
  expect(patches).toBe(3)
  present = node('a', 'second', '9', '10.5.1.0/24')
  await own.published(signal)
  for (let times = 0; times < 3; times++) await own.ready(signal)
  expect(patches).toBe(4)
})

it('does not write the condition of a node that is up already, because each write costs a message to each node', async () => {
  const asked: string[] = []
  const up = {
    type: 'NetworkUnavailable',
    status: 'False',
    reason: 'FlannelIsUp',
    message: 'Flannel is running on this node',
  }
  let conditions: unknown = [
    { type: 'Ready', status: 'True' },
    { ...up, lastHeartbeatTime: '2026-01-01T00:00:00Z' },
  ]
  const { client } = apiOf(({ method, path }) => {
    asked.push(`${method} ${path}`)
    const present = { ...node('a', 'a', '7', '10.5.1.0/24'), status: { conditions } }
    return path === '/api/v1/nodes' ? { metadata: { resourceVersion: '9' }, items: [present] } : present
  })
  async function requestsOfReady(): Promise<string[]> {
    const own = new OwnNode({ client, names, name: 'a', log })
    await own.published(signal)
    asked.length = 0
    await own.ready(signal)
    return asked
  }
  expect(await requestsOfReady()).toEqual(['GET /api/v1/nodes/a'])
  for (const other of [{ status: 'True' }, { reason: 'NoRouteCreated' }, { type: 'Ready' }]) {
    conditions = [{ ...up, ...other }]
    expect(await requestsOfReady()).toEqual(['GET /api/v1/nodes/a', 'PATCH /api/v1/nodes/a/status'])
  }
})
