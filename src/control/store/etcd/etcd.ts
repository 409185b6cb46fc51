// etcd.ts - implements the interface of store.ts with etcd v3 and flannel's keys.

import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import type * as etcd3 from 'etcd3'
import { describeError, isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import {
  LEASE_TTL_MS,
  type Expected,
  type Store,
  type StoreBatch,
  type StoreChange,
  type StoreEntry,
  type Written,
} from '../store.ts'
import { EtcdClient, nextOf, type EtcdCalls, type EtcdOptions } from './etcd-client.ts'

/** How long a listing of all leases may take, in ms. A listing of 60,000 leases is about 9 MB. */
const LIST_TIMEOUT_MS = 20_000

const KEEP_ALIVE_TIMEOUT_MS = 6_000

/**
 * After a failed write weftd keeps the write's etcd lease for a later write, until this fraction of the etcd lease's
 * lifetime has passed: one hour of 24.
 */
const SPARE_SHARE = 1 / 24

/**
 * The purposes for which weftd requests an etcd lease: the key of this node's lease (`subnets`), and the key with this
 * host's name (`claim`).
 */
type Kind = 'subnets' | 'claim'

/** The number of keys whose expiry times weft requests simultaneously. */
const ENDS_ASKED = 64

/**
 * An instant by the wall clock, in ms since 1970, and by the monotonic clock, in ms. Both clocks are needed: the wall
 * clock can be set back, and the monotonic clock stops while the host is suspended.
 */
interface Instant {
  readonly wallMs: number
  readonly monotonicMs: number
}

/** An etcd lease, to which keys are attached and with which the keys expire. `at` is the time of its request. */
type Grant = Pick<etcd3.ILeaseGrantResponse, 'ID' | 'TTL'> & { readonly at: Instant }

interface ClusterIdentity {
  readonly cluster?: string
  readonly term?: bigint
}

type Comparison =
  | { readonly target: 'Version'; readonly version: number }
  | { readonly target: 'Mod'; readonly mod_revision: string }
  | { readonly target: 'Value'; readonly value: Buffer }

export class EtcdStore implements Store {
  readonly name = 'etcd'
  readonly title = 'Etcd Local Manager'
  readonly #options: EtcdOptions
  readonly #client: EtcdClient
  readonly #ttlS: number
  readonly #configKey: Buffer<ArrayBuffer>
  /** The common prefix of the keys of leases, with a slash at its end. */
  readonly #directory: string
  /** The first key of the range that holds all leases. */
  readonly #from: Buffer<ArrayBuffer>
  /** The first key after the range that holds all leases. */
  readonly #to: Buffer<ArrayBuffer>
  /** The id and Raft term of the etcd cluster that answered last. If they change, another cluster may be answering. */
  #known: ClusterIdentity = {}
  /**
   * The etcd leases that were granted for writes that failed, or may have failed. The next write for the same purpose
   * (Kind) reuses such a lease.
   */
  readonly #spare = new Map<Kind, Grant>()

  /** Creates the client without contacting etcd. Throws WeftError USAGE if a certificate file cannot be read. */
  constructor(options: EtcdOptions) {
    this.#options = options
    this.#client = new EtcdClient(options)
    this.#ttlS = Math.ceil((options.ttlMs ?? LEASE_TTL_MS) / 1000)
    this.#configKey = Buffer.from(posix.join(options.prefix, 'config'))
    this.#directory = `${posix.join(options.prefix, 'subnets')}/`
    this.#from = Buffer.from(this.#directory)
    this.#to = Buffer.from(this.#directory.replace(/\/$/, '0')) // the byte after '/'
  }

  async config(signal: AbortSignal): Promise<string> {
    const { kvs } = await this.#client.call(signal, (etcd) => etcd.kv.range({ key: this.#configKey }))
    if (kvs[0]) return kvs[0].value.toString()
    const message = 'flannel config not found in etcd store. Did you create your config using etcdv3 API?'
    const example = `etcdctl put ${this.#options.prefix}/config '{"Network":"10.5.0.0/16"}'`
    throw new WeftError('CONFIG_MISSING', message, {
      remedy: `store a configuration with \`${example}\`, or correct --etcd-prefix`,
    })
  }

  async setConfig(text: string, signal: AbortSignal): Promise<void> {
    await this.#callToWrite(signal, (etcd) => etcd.kv.put({ key: this.#configKey, value: Buffer.from(text) }))
  }

  async list(signal: AbortSignal): Promise<{ revision: bigint; entries: StoreEntry[] }> {
    const range = { key: this.#from, range_end: this.#to }
    const { header, kvs } = await this.#client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
    const revision = this.#revisionOf(header)
    this.#known = { ...clusterOf(header), ...this.#known }
    return { revision, entries: kvs.map((pair) => this.#toEntry(pair)) }
  }

  async ends(signal: AbortSignal): Promise<Map<string, number>> {
    const range = { key: this.#from, range_end: this.#to, keys_only: true }
    const { kvs } = await this.#client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
    const leased = kvs.filter(({ lease }) => lease !== '0')
    const ends = new Map<string, number>()
    for (let at = 0; at < leased.length; at += ENDS_ASKED) {
      const part = leased.slice(at, at + ENDS_ASKED).map(async ({ key, lease: ID }) => {
        const { TTL } = await this.#client.call(signal, (etcd) => etcd.leaseClient.leaseTimeToLive({ ID }))
        // A TTL of -1 means that the etcd lease has expired.
        if (Number(TTL) >= 0) ends.set(key.toString().slice(this.#directory.length), Date.now() + Number(TTL) * 1000)
      })
      await Promise.all(part)
    }
    return ends
  }

  async *watch(after: bigint, signal: AbortSignal): AsyncGenerator<StoreBatch, never> {
    let delivered = after
    for (;;)
      for await (const batch of this.#watchOnce(delivered, signal)) {
        delivered = batch.revision
        yield batch
      }
  }

  create(key: string, value: string, signal: AbortSignal): Promise<Written | undefined> {
    return this.#putIf([{ target: 'Version', version: 0 }], key, value, false, signal)
  }

  async update(key: string, value: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined> {
    try {
      return await this.#putIf(asRead(expected), key, value, expected.isReservation ?? false, signal)
    } catch (error) {
      if (!isFull(error)) throw error
      const kept = await this.#keepAsRead(key, expected, signal)
      // If etcd's storage quota is used up, weftd can extend the key's life but cannot write a value. That is enough
      // only if the value stays the same and the etcd lease has not expired yet.
      if (kept && (value !== expected.value || (kept.expiresAt ?? Infinity) <= Date.now())) throw error
      return kept && { ...kept, unwritten: describeError(error) }
    }
  }

  async delete(key: string, expected: Expected, signal: AbortSignal): Promise<boolean> {
    const result = await this.#client.call(signal, (etcd) =>
      etcd.kv.txn({
        compare: asRead(expected).map((each) => ({ result: 'Equal', key: this.#fullKey(key), ...each })),
        success: [{ request_delete_range: { key: this.#fullKey(key) } }],
        failure: [],
      }),
    )
    return result.succeeded
  }

  async claim(name: string, value: string, signal: AbortSignal): Promise<string | undefined> {
    const key = this.#claimKey(name)
    const { kvs } = await this.#client.call(signal, (etcd) => etcd.kv.range({ key }))
    const before = kvs[0]?.value.toString()
    if (before === value) return before
    await this.#underLease('claim', signal, ({ ID: lease }) =>
      this.#callToWrite(signal, (etcd) => etcd.kv.put({ key, value: Buffer.from(value), lease })),
    )
    return before
  }

  async claims(
    since: bigint | undefined,
    signal: AbortSignal,
  ): Promise<{ revision: bigint; isWhole: boolean; values: Map<string, string> }> {
    const folder = `${posix.join(this.#options.prefix, 'weft')}/`
    const range = {
      key: Buffer.from(folder),
      range_end: Buffer.from(folder.replace(/\/$/, '0')),
      // With min_mod_revision etcd sends only the hosts' names (claims) that were written after `since`. With thousands
      // of nodes nearly all names are older.
      ...(since === undefined ? {} : { min_mod_revision: String(since + 1n) }),
    }
    const { header, kvs } = await this.#client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
    const values = new Map(kvs.map(({ key, value }) => [key.toString().slice(folder.length), value.toString()]))
    return { revision: this.#revisionOf(header), isWhole: since === undefined, values }
  }

  async unclaim(name: string, value: string, signal: AbortSignal): Promise<void> {
    const key = this.#claimKey(name)
    await this.#client.call(signal, (etcd) =>
      etcd.kv.txn({
        compare: [{ result: 'Equal', target: 'Value', key, value: Buffer.from(value) }],
        success: [{ request_delete_range: { key } }],
        failure: [],
      }),
    )
  }

  async close(): Promise<void> {
    this.#client.close()
  }

  #claimKey(name: string): Buffer {
    return Buffer.from(posix.join(this.#options.prefix, 'weft', name))
  }

  #fullKey(key: string): Buffer {
    return Buffer.from(this.#directory + key)
  }

  /**
   * Reads the store's revision from a response header. Throws if the revision is missing or less than 1, because such a
   * response does not come from etcd.
   */
  #revisionOf(header: etcd3.IResponseHeader | null): bigint {
    const revision = BigInt(header?.revision ?? 0)
    if (revision > 0n) return revision
    throw this.#client.errorOf(new Error('an answer had no revision'))
  }

  #toEntry(pair: etcd3.IKeyValue): StoreEntry {
    return {
      key: pair.key.toString().slice(this.#directory.length),
      value: pair.value.toString(),
      revision: BigInt(pair.mod_revision),
      created: BigInt(pair.create_revision),
      isReservation: pair.lease === '0',
    }
  }

  #toChange(event: etcd3.IEvent): StoreChange {
    const entry = this.#toEntry(event.kv)
    return event.type === 'Delete'
      ? { kind: 'delete', key: entry.key, revision: entry.revision }
      : { kind: 'put', entry }
  }

  /**
   * Runs a call that writes to etcd. If etcd's storage quota is used up, etcd refuses every write until an operator
   * disarms the alarm; the error then names this remedy.
   */
  #callToWrite<T>(signal: AbortSignal, what: (etcd: EtcdCalls) => Promise<T>): Promise<T> {
    return this.#client.call(signal, what).catch((error: unknown) => {
      if (!isFull(error)) throw error
      throw new WeftError('STORE_UNAVAILABLE', `etcd at ${this.#options.endpoints.join(', ')} is full: ${FULL}`, {
        remedy: 'compact and defragment it, or raise its --quota-backend-bytes, then run `etcdctl alarm disarm`',
        cause: error,
      })
    })
  }

  /**
   * Runs `write` with an etcd lease: an unused lease that was granted for an earlier, failed write if there is one,
   * otherwise a new lease. So repeated failures do not leave many unused etcd leases behind.
   */
  async #underLease<T>(kind: Kind, signal: AbortSignal, write: (grant: Grant) => Promise<T>): Promise<T> {
    const before = this.#spare.get(kind)
    this.#spare.delete(kind)
    // If the wall clock was set back, weftd does not know for how long the host was suspended since the request.
    const isFresh = before && before.at.wallMs <= Date.now() && ageMs(before.at) < SPARE_SHARE * this.#ttlS * 1000
    const grant = isFresh ? before : await this.#newGrant(kind, signal)
    try {
      return await write(grant)
    } catch (error) {
      // The etcd lease that an earlier, failed write left unused has expired, or belongs to another cluster. So run the
      // write with a new etcd lease.
      if (isFresh && /lease not found/.test(messageOf(error))) return this.#underLease(kind, signal, write)
      // Revoke the new etcd lease only if etcd refused the write. After any other failure etcd may have written the
      // key, and revoking the lease would delete the key.
      const isRevoked = !isFresh && isRefusal(error) && (await this.#revokeIfBare(grant, signal).catch(() => false))
      if (!isRevoked) this.#spare.set(kind, grant)
      throw error
    }
  }

  /**
   * Requests an etcd lease. weftd chooses the id of the etcd lease. So if the answer is lost, weftd can repeat the
   * request, because etcd grants each id only once.
   */
  async #newGrant(kind: Kind, signal: AbortSignal): Promise<Grant> {
    const grant = { at: instantNow(), ID: newLeaseId(), TTL: String(this.#ttlS) }
    const { ID, TTL } = grant
    try {
      const granted = await this.#callToWrite(signal, (etcd) => etcd.leaseClient.leaseGrant({ ID, TTL }))
      return Number(granted.TTL) > 0 ? { ...grant, TTL: granted.TTL } : grant
    } catch (error) {
      if (/lease already exists/.test(messageOf(error))) return grant
      if (!isRefusal(error)) this.#spare.set(kind, grant)
      throw error
    }
  }

  /** Revokes an etcd lease if no key is attached to the lease. Returns true if the lease was revoked. */
  async #revokeIfBare(grant: Grant, signal: AbortSignal): Promise<boolean> {
    const { ID } = grant
    const { keys } = await this.#client.call(signal, (etcd) => etcd.leaseClient.leaseTimeToLive({ ID, keys: true }))
    if (keys.length > 0) return false
    await this.#revoke(grant, signal)
    return true
  }

  /** Revokes an etcd lease. Succeeds if the etcd lease does not exist. */
  async #revoke({ ID }: Grant, signal: AbortSignal): Promise<void> {
    await this.#client
      .call(signal, (etcd) => etcd.leaseClient.leaseRevoke({ ID }))
      .catch((error: unknown) => {
        if (!/lease not found/.test(messageOf(error))) throw error
      })
  }

  /**
   * Writes a key if the conditions `compare` hold, and attaches the key to an etcd lease unless `isForever` is true.
   * Returns undefined if the conditions do not hold.
   */
  async #putIf(
    compare: readonly Comparison[],
    key: string,
    value: string,
    isForever: boolean,
    signal: AbortSignal,
  ): Promise<Written | undefined> {
    if (!isForever)
      return this.#underLease('subnets', signal, (grant) => this.#putUnder(grant, compare, key, value, signal))
    return this.#putUnder(undefined, compare, key, value, signal)
  }

  /**
   * Writes a key as `#putIf` does, and attaches the key to the etcd lease `grant`. If `grant` is undefined, the key
   * never expires.
   */
  async #putUnder(
    grant: Grant | undefined,
    compare: readonly Comparison[],
    key: string,
    value: string,
    signal: AbortSignal,
  ): Promise<Written | undefined> {
    const result = await this.#callToWrite(signal, (etcd) =>
      etcd.kv.txn({
        compare: compare.map((each) => ({ result: 'Equal', key: this.#fullKey(key), ...each })),
        success: [{ request_put: { key: this.#fullKey(key), value: Buffer.from(value), lease: grant?.ID ?? 0 } }],
        failure: [{ request_range: { key: this.#fullKey(key) } }],
      }),
    )
    const expiresAt = grant && endOf(grant.at, Number(grant.TTL))
    if (result.succeeded) return { revision: this.#revisionOf(result.header), expiresAt }
    if (!grant) return undefined
    // The conditions can also fail because this process itself has written the key. weftd repeats a call whose answer
    // was lost, although etcd may have run it. The key is then attached to the same etcd lease. Its value may be that
    // of an earlier call.
    const present = result.responses[0]?.response_range?.kvs[0]
    if (present?.lease !== grant.ID) await this.#revoke(grant, signal)
    else if (present.value.equals(Buffer.from(value))) return { revision: BigInt(present.mod_revision), expiresAt }
    return undefined
  }

  /**
   * Extends the life of a key whose state is still `expected`. etcd allows this even if its storage quota is used up.
   * Returns undefined if the key has changed.
   */
  async #keepAsRead(key: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined> {
    const [pair] = (await this.#client.call(signal, (etcd) => etcd.kv.range({ key: this.#fullKey(key) }))).kvs
    if (!pair) return undefined
    const { revision, value, isReservation } = this.#toEntry(pair)
    if (revision !== expected.revision || value !== expected.value) return undefined
    if (isReservation) return { revision, expiresAt: undefined }
    const at = instantNow()
    const leftS = await this.#client.call(signal, (etcd) => keepAlive(etcd, pair.lease, signal))
    return { revision, expiresAt: endOf(at, leftS) }
  }

  /**
   * Throws WeftError GAP if the header shows that the answer comes from a different etcd cluster than the events that
   * the watch delivered up to revision `delivered`.
   */
  #checkCluster(header: etcd3.IResponseHeader | null, delivered: bigint): void {
    if (!header) return
    // A restored or replaced etcd cluster may have a higher revision than `delivered`, so the revision does not reveal
    // the replacement. The cluster's id or Raft term reveals it.
    const found = clusterOf(header)
    const isOther =
      (found.cluster !== undefined && this.#known.cluster !== undefined && found.cluster !== this.#known.cluster) ||
      (found.term !== undefined && this.#known.term !== undefined && found.term < this.#known.term)
    this.#known = { ...this.#known, ...found }
    if (isOther) throw new WeftError('GAP', 'the cluster was restored or replaced')
    const current = BigInt(header.revision)
    if (current !== 0n && current < delivered)
      throw new WeftError('GAP', `the store went back from revision ${delivered} to ${current}`)
  }

  /**
   * Yields the batches of one watch of etcd. Returns if the server closed the connection because of too many pings; the
   * caller then opens the watch again.
   */
  async *#watchOnce(after: bigint, signal: AbortSignal): AsyncGenerator<StoreBatch, void> {
    // The watch resumes after the last delivered revision. If etcd has compacted that revision, the watch throws
    // WeftError GAP.
    const request = { key: this.#from, range_end: this.#to, start_revision: String(after + 1n), progress_notify: true }
    const { responses, created, end, pingsLess } = await this.#client.openWatch(request, signal)
    try {
      let delivered = after
      for (let response = created; ;) {
        if (response.canceled) throw gapOf(response)
        const { header } = response as { readonly header: etcd3.IResponseHeader | null }
        this.#checkCluster(header, delivered)
        const current = BigInt(header?.revision ?? 0)
        // A `created` response does not advance `delivered`, because events before its revision may still arrive. Every
        // other response without events is a progress notification: all events up to its revision were delivered.
        if (!response.created && response.events.length === 0 && current > delivered) delivered = current
        if (response.created || response.events.length === 0) yield { revision: delivered, changes: [] }
        else
          for (const batch of byRevision(response.events.map((event) => this.#toChange(event)))) {
            delivered = batch.revision
            yield batch
          }
        response = await nextOf(responses)
      }
    } catch (error) {
      signal.throwIfAborted()
      if (pingsLess(error)) return
      throw isWeftError(error) ? error : this.#client.errorOf(error)
    } finally {
      end()
    }
  }
}

/**
 * Reads the id and Raft term of the cluster from a response header. `etcd grpc-proxy` omits the id and the term in some
 * headers; the package etcd3 returns 0 for a missing value.
 */
const clusterOf = ({ cluster_id, raft_term }: etcd3.IResponseHeader): ClusterIdentity => ({
  ...(Number(cluster_id) === 0 ? {} : { cluster: cluster_id }),
  ...(Number(raft_term) === 0 ? {} : { term: BigInt(raft_term) }),
})

/** Groups changes by revision, so that the changes of one etcd transaction stay in one batch. */
function byRevision(changes: readonly StoreChange[]): StoreBatch[] {
  const batches: { revision: bigint; changes: StoreChange[] }[] = []
  for (const change of changes) {
    const { revision } = change.kind === 'put' ? change.entry : change
    const last = batches.at(-1)
    if (last?.revision === revision) last.changes.push(change)
    else batches.push({ revision, changes: [change] })
  }
  return batches
}

const instantNow = (): Instant => ({ wallMs: Date.now(), monotonicMs: performance.now() })

/** Returns the time since an instant, in ms: the longer of the times by the two clocks. */
const ageMs = ({ wallMs, monotonicMs }: Instant): number =>
  Math.max(Date.now() - wallMs, performance.now() - monotonicMs)

/** Returns the time `seconds` seconds after an instant, in ms since 1970 by the wall clock as it is set now. */
const endOf = (at: Instant, seconds: number): number => Date.now() + seconds * 1000 - ageMs(at)

/** Returns a random id of 63 bits for an etcd lease. The id is never 0, because 0 makes etcd choose an id. */
const newLeaseId = (): string => String((randomBytes(8).readBigUInt64BE() >> 1n) | 1n)

/** The text of etcd's ErrNoSpace (api/v3rpc/rpctypes/error.go). */
const FULL = 'database space exceeded'
const isFull = (error: unknown): boolean => messageOf(error).includes(FULL)
/** Returns true if the error means that etcd refused the write, so the write has not happened. */
const isRefusal = (error: unknown): boolean => isWeftError(error, 'STORE') || isFull(error)

/** Renews an etcd lease. Returns the lease's remaining lifetime in seconds; 0 if the lease has expired. */
async function keepAlive({ leaseClient }: EtcdCalls, id: string, signal: AbortSignal): Promise<number> {
  const stream = await leaseClient.leaseKeepAlive({ deadline: Date.now() + KEEP_ALIVE_TIMEOUT_MS })
  const cancel = (): void => stream.cancel()
  const answer = new Promise<etcd3.ILeaseKeepAliveResponse>((resolve, reject) => {
    stream.on('data', resolve)
    stream.on('error', reject)
    stream.on('end', () => reject(new Error('no answer to a keep-alive')))
    signal.addEventListener('abort', cancel, { once: true })
  })
  stream.write({ ID: id })
  stream.end() // no further request follows
  return answer.then(({ TTL }) => Number(TTL)).finally(() => signal.removeEventListener('abort', cancel))
}

/** Returns the conditions of a transaction that hold if a key still has the expected revision and value. */
function asRead({ revision, value }: Expected): readonly Comparison[] {
  return [
    { target: 'Mod', mod_revision: String(revision) },
    // Bytes that are not UTF-8 became U+FFFD when weftd read the value. In that case the original bytes are not known,
    // so etcd compares only the revision.
    ...(value.includes('\uFFFD') ? [] : [{ target: 'Value', value: Buffer.from(value) } as const]),
  ]
}

/**
 * Returns the error for a watch that the server ended. The server ends a watch after a compaction of the history, when
 * the token expires, or when an administrator cancels the watch.
 */
function gapOf(response: etcd3.IWatchResponse): WeftError {
  const reason = (response as { cancel_reason?: string }).cancel_reason
  return new WeftError(
    'GAP',
    response.compact_revision !== '0'
      ? `compact rev ${response.compact_revision}`
      : `the server cancelled it: ${reason || 'no reason given'}`,
  )
}
