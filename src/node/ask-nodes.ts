// ask-nodes.ts - asks each peer over the network for its state (its view: peers, versions, problems). A query goes to
// the address at which this node probes the peer.
//
// Each query has a time limit and a size limit, so that a peer which answers slowly, endlessly or with invalid data
// does no harm.

import { createHash, timingSafeEqual } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { request } from 'node:http'
import { messageOf } from '../base/errors.ts'
import { Secret } from '../base/secret.ts'
import { printable } from '../base/text.ts'
import type { Lease } from '../control/lease/lease.ts'
import { addressText, FAMILIES, formatAddress, netText, type Address, type Family } from '../net/address.ts'
import type { NodeOptions } from '../options.ts'
import type { PathPeer } from '../path/contract.ts'
import type { NetworkQuery } from '../report/health.ts'
import type { QueriedNode } from '../report/network-findings.ts'
import { networkReport, type NetworkReport } from '../report/network-view.ts'
import type { Status } from '../report/status.ts'
import { readView, viewOf } from '../report/view.ts'
import type { Node } from './node.ts'
import { subnetsIn } from './report.ts'

/** The time limit of one query in ms, from the first packet sent to the last packet received. */
const PATIENCE_MS = 1_500
/**
 * The interval in ms of the timer ticks that count the time limit of a query. A busy event loop makes no ticks, so this
 * node's own delays do not count against the time limit. A query ends in any case after twice its time limit.
 */
const TICK_MS = 100
/**
 * The maximum number of queries that run simultaneously, so that they do not delay each other's answers. A query that
 * has taken SLOW_MS no longer counts towards this maximum, as long as at most MOST_UNDER_WAY queries run.
 */
const AT_ONCE = 32
const SLOW_MS = 50
const MOST_UNDER_WAY = 256
/**
 * The maximum number of peers that are queried, silent peers first. Each peer's answer lists all peers, so the size of
 * all answers grows with the square of the number of peers.
 */
const MOST_ASKED = 500
/** The maximum length of an answer in bytes. The answer of a node with 2,000 peers has a quarter of this length. */
const MOST_BYTES = 1 << 20

type NetworkOptions = Pick<NodeOptions, 'status-network' | 'status-token-file'>

/** The URL path at which a node serves its state (view) to its peers. */
const VIEW_PATH = '/view.json'

/**
 * Reads the token that nodes send to each other. Returns undefined if the flags name no file. Rejects if the file
 * cannot be read or is empty.
 */
export async function readToken({ 'status-token-file': file }: NetworkOptions): Promise<Secret | undefined> {
  if (file === '') return undefined
  const token = new Secret((await readFile(file, 'utf8')).trim())
  if (token.isEmpty) throw new Error(`${file} is empty`)
  return token
}

/**
 * Returns true if the Authorization header has the token `token`. The comparison takes the same time for every header,
 * so its duration reveals nothing about the token.
 */
export function showsToken(header: string | undefined, token: Secret): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(header ?? ''), digest(bearer(token)))
}
const bearer = (token: Secret): string => `Bearer ${token.reveal()}`

/** The source and the destination address of a query to a node. */
interface Target {
  readonly from: Address
  readonly to: Address
}

/** How long in ms a report of the whole network is reused for further requests. */
const FRESH_MS = 1_000

/**
 * Creates the object that queries all nodes for their state, and that runs only one query of all nodes at a time.
 * Returns undefined if nodes do not serve their state to each other (`--status-network 0`).
 */
export function networkAsking(node: Node, own: () => Promise<Status>): NetworkQuery | undefined {
  if (node.options['status-network'] === 0) return undefined
  let latest: { readonly until: number; readonly report: Promise<NetworkReport> } | undefined
  return {
    isGuarded: node.options['status-token-file'] !== '',
    report() {
      if (latest && performance.now() < latest.until) return latest.report
      const report = askNetwork(node, own)
      latest = { until: Infinity, report }
      report.then(
        () => (latest = { until: performance.now() + FRESH_MS, report }),
        () => (latest = undefined),
      )
      return report
    },
  }
}

/** Queries all peers and this node itself. If a query of a peer fails, the report has the reason. */
export async function askNetwork(
  node: Node,
  own: () => Promise<Status>,
  most: number = MOST_ASKED,
): Promise<NetworkReport> {
  const began = performance.now()
  const { options, lease, view, names, signal } = node
  const token = await readToken(options).catch((error: unknown) => messageOf(error))
  const at = new Date().toISOString()
  const self: QueriedNode = {
    lease: lease.key,
    name: null,
    subnet: netText(subnetsIn(node.config, lease)),
    publicIp: addressText(node.attrs.publicIp),
    kind: 'told',
    why: null,
    view: viewOf(await own(), at),
    clock: { aheadMs: 0, uncertainMs: 0 },
  }
  const peers = new Map(node.ownership.dataPath?.peers().map((peer) => [peer.key, peer]))
  const all = [...view.values()].filter(({ key }) => key !== lease.key)
  const others = all.length > most ? chosen(all, node).slice(0, most) : all
  const leases = new Set([lease.key, ...others.map(({ key }) => key)])
  const asked: QueriedNode[] = []
  const takeTurn = createTurns()
  const askOne = async (other: Lease): Promise<void> => {
    const done = await takeTurn()
    try {
      const about = {
        lease: other.key,
        subnet: netText(subnetsIn(node.config, other)),
        publicIp: addressText(other.attrs.publicIp),
        name: names.get(addressText(other.attrs.publicIp)) ?? null,
        otherType: otherTypeOf(other, node.attrs.backendType),
      }
      const target = targetOf(node, peers.get(other.key))
      const answer =
        typeof token === 'string'
          ? ({ kind: 'refused', why: `the token of this node cannot be read: ${token}` } as const)
          : target
            ? await ask(target, options['status-network'], token, signal)
            : ({ kind: 'silent', why: 'the data path of this node has no path to it' } as const)
      const told = { view: undefined, clock: undefined, why: null, ...about, ...answer }
      const seen = told.view?.seen.filter((sight) => leases.has(sight.lease)) ?? []
      asked.push(told.view ? { ...told, view: { ...told.view, seen } } : told)
    } finally {
      done()
    }
  }
  await Promise.all(others.map(askOne))
  const sorted = [self, ...asked].toSorted((a, b) => a.subnet.localeCompare(b.subnet, 'en', { numeric: true }))
  return networkReport(sorted, at, Math.round(performance.now() - began), all.length + 1)
}

/** Returns the backend type that a lease publishes, if the type differs from this node's; else undefined. */
const otherTypeOf = ({ attrs: { backendType } }: Lease, own: string): string | undefined =>
  backendType === own ? undefined : backendType

/**
 * Sorts the leases of the peers that the node queries: first the peers that do not answer probes, then all others in
 * random order.
 */
function chosen(all: readonly Lease[], { probes }: Node): readonly Lease[] {
  const isSilent = ({ key }: Lease): boolean =>
    FAMILIES.some((family) => probes?.[family]?.result(key)?.isAnswering === false)
  const drawn = all.map((lease) => ({ lease, rank: isSilent(lease) ? 0 : 1 + Math.random() }))
  return drawn.toSorted((a, b) => a.rank - b.rank).map(({ lease }) => lease)
}

/**
 * Returns a function that waits until one more query may run. The function resolves with a callback, which the query
 * must call when it has ended.
 */
function createTurns(): () => Promise<() => void> {
  let [busy, underWay] = [0, 0]
  const waiting: (() => void)[] = []
  const goOn = (): void => {
    while (busy < AT_ONCE && underWay < MOST_UNDER_WAY) {
      const next = waiting.shift()
      if (!next) break
      busy++
      underWay++
      next()
    }
  }
  return async () => {
    const turn = new Promise<void>((go) => waiting.push(go))
    goOn()
    await turn
    let isBusy = true
    const leave = (): void => {
      if (isBusy) busy--
      isBusy = false
      goOn()
    }
    const timer = setTimeout(leave, SLOW_MS)
    return () => {
      clearTimeout(timer)
      underWay--
      leave()
    }
  }
}

/**
 * Returns the addresses, of one family, between which this node and the peer exchange probes. If the peer answers over
 * no family, returns the addresses of the first family that both nodes have.
 */
function targetOf({ ownership: { dataPath }, probes }: Node, peer: PathPeer | undefined): Target | undefined {
  const targets = FAMILIES.flatMap((family: Family) => {
    const [from, to] = [dataPath?.probeSource?.[family], peer?.[family]?.probe]
    const isAnswering = probes?.[family]?.result(peer?.key ?? '')?.isAnswering ?? false
    return from === undefined || to === undefined ? [] : [{ from, to, isAnswering }]
  })
  return targets.find(({ isAnswering }) => isAnswering) ?? targets[0]
}

type Answer = Pick<QueriedNode, 'kind'> & Partial<Pick<QueriedNode, 'why' | 'view' | 'clock'>>

/**
 * Sends the query to a node. Resolves with the node's answer, or with the reason why the node did not answer; never
 * rejects.
 */
function ask({ from, to }: Target, port: number, token: Secret | undefined, signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve) => {
    const [sentAt, sent] = [Date.now(), performance.now()]
    const asking = request({
      host: formatAddress(to),
      port,
      path: VIEW_PATH,
      localAddress: formatAddress(from),
      agent: false,
      maxHeaderSize: 8 << 10,
      headers: token ? { Authorization: bearer(token) } : {},
    })
    const end = (answer: Answer): void => {
      clearInterval(timer)
      signal.removeEventListener('abort', onAbort)
      asking.destroy()
      resolve(answer)
    }
    const silent = (why: string): void => end({ kind: 'silent', why })
    const onAbort = (): void => silent('this node stops')
    signal.addEventListener('abort', onAbort, { once: true })
    let ticks = 0
    const timer = setInterval(() => {
      const isLate = ++ticks * TICK_MS >= PATIENCE_MS || performance.now() - sent >= 2 * PATIENCE_MS
      if (isLate) silent(`no answer within ${PATIENCE_MS / 1000} s`)
    }, TICK_MS)
    asking.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED') end({ kind: 'closed', why: 'no weftd serves a status there' })
      else if (error.code?.startsWith('HPE_')) end({ kind: 'junk', why: 'it does not speak HTTP' })
      else silent(messageOf(error))
    })
    asking.on('response', (response) => {
      // Measure the time until the first byte of the answer, because the rest of a long answer takes longer to arrive.
      const tookMs = performance.now() - sent
      const parts: Buffer[] = []
      let length = 0
      response.on('data', (part: Buffer) => {
        parts.push(part)
        length += part.length
        if (length > MOST_BYTES) end({ kind: 'junk', why: `its answer has more than ${MOST_BYTES >> 10} KiB` })
      })
      response.on('error', (error) => silent(messageOf(error)))
      response.on('end', () => {
        const text = Buffer.concat(parts).toString()
        const { statusCode = 0 } = response
        if (statusCode === 401 || statusCode === 403)
          return end({ kind: 'refused', why: printable(text.trim().slice(0, 200)) })
        if (statusCode === 404) return end({ kind: 'closed', why: 'another program has the port there' })
        if (statusCode !== 200) return end({ kind: 'junk', why: `it answers ${statusCode}` })
        try {
          const view = readView(text)
          const aheadMs = Date.parse(view.at) - (sentAt + tookMs / 2)
          return end({ kind: 'told', view, clock: { aheadMs, uncertainMs: tookMs / 2 } })
        } catch (error) {
          return end({ kind: 'junk', why: messageOf(error) })
        }
      })
    })
    asking.end()
  })
}
