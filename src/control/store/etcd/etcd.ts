// etcd.ts - implements the interface of store.ts by etcd v3, with flannel's keys.

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
import { createEtcdClient, nextOf, type EtcdCalls, type EtcdOptions } from './etcd-client.ts'

/** How long a listing of all leases may take, in ms. A listing of 60,000 leases is about 9 MB. */
const LIST_TIMEOUT_MS = 20_000

const KEEP_ALIVE_TIMEOUT_MS = 6_000

/**
 * An etcd lease that was granted for a write that failed may be used for another write until this fraction of its
 * lifetime has passed: one hour of 24.
 */
const SPARE_SHARE = 1 / 24

/** The purposes for which weftd requests an etcd lease: the key of this node's lease, and the key of its claim. */
type Kind = 'subnets' | 'claim'

/** The number of keys whose expiry times are requested simultaneously. */
const ENDS_ASKED = 64

/** An etcd lease, to which keys are attached and with which they expire. `at` is when it was requested, in ms since the epoch. */
type Grant = Pick<etcd3.ILeaseGrantResponse, 'ID' | 'TTL'> & { readonly at: number }

type Comparison =
  | { readonly target: 'Version'; readonly version: number }
  | { readonly target: 'Mod'; readonly mod_revision: string }
  | { readonly target: 'Value'; readonly value: Buffer }

/** Creates a store in etcd without contacting it. Throws WeftError USAGE if a certificate file cannot be read. */
export function createEtcdStore(options: EtcdOptions): Store {
  const client = createEtcdClient(options)
  const ttlS = Math.ceil((options.ttlMs ?? LEASE_TTL_MS) / 1000)
  const configKey = Buffer.from(posix.join(options.prefix, 'config'))
  const directory = `${posix.join(options.prefix, 'subnets')}/`
  const from = Buffer.from(directory)
  const to = Buffer.from(directory.replace(/\/$/, '0')) // the byte after '/'
  const claimKey = (name: string): Buffer => Buffer.from(posix.join(options.prefix, 'weft', name))
  const fullKey = (key: string): Buffer => Buffer.from(directory + key)

  /** The id and Raft term of the etcd cluster that answered last. If they change, another cluster may be answering. */
  let known: { readonly cluster?: string; readonly term?: bigint } = {}
  /**
   * Reads the id and Raft term of the cluster from a response header. `etcd grpc-proxy` omits the id and the term in
   * some headers; the package etcd3 returns 0 for them.
   */
  const clusterOf = ({ cluster_id, raft_term }: etcd3.IResponseHeader): typeof known => ({
    ...(Number(cluster_id) === 0 ? {} : { cluster: cluster_id }),
    ...(Number(raft_term) === 0 ? {} : { term: BigInt(raft_term) }),
  })

  /**
   * Reads the store's revision from a response header. Throws if it is missing or less than 1, because such a response does not come from
   * etcd.
   */
  function revisionOf(header: etcd3.IResponseHeader | null): bigint {
    const revision = BigInt(header?.revision ?? 0)
    if (revision > 0n) return revision
    throw client.errorOf(new Error('an answer had no revision'))
  }

  const toEntry = (pair: etcd3.IKeyValue): StoreEntry => ({
    key: pair.key.toString().slice(directory.length),
    value: pair.value.toString(),
    revision: BigInt(pair.mod_revision),
    created: BigInt(pair.create_revision),
    isReservation: pair.lease === '0',
  })
  const toChange = (event: etcd3.IEvent): StoreChange => {
    const entry = toEntry(event.kv)
    return event.type === 'Delete'
      ? { kind: 'delete', key: entry.key, revision: entry.revision }
      : { kind: 'put', entry }
  }

  /** Runs a call that writes. If etcd's storage quota is used up, it refuses every write until an operator disarms the alarm. */
  const callToWrite: typeof client.call = (signal, what) =>
    client.call(signal, what).catch((error: unknown) => {
      if (!isFull(error)) throw error
      throw new WeftError('STORE_UNAVAILABLE', `etcd at ${options.endpoints.join(', ')} is full: ${FULL}`, {
        remedy: 'compact and defragment it, or raise its --quota-backend-bytes, then run `etcdctl alarm disarm`',
        cause: error,
      })
    })

  /**
   * The etcd leases that were granted for a write that failed, or may have failed. The next write of the same kind
   * reuses them.
   */
  const spare = new Map<Kind, Grant>()

  /**
   * Runs `write` with an etcd lease: a spare lease of a failed write if there is one, or a new one. So repeated
   * failures do not leave many unused etcd leases behind.
   */
  async function underLease<T>(kind: Kind, signal: AbortSignal, write: (grant: Grant) => Promise<T>): Promise<T> {
    const before = spare.get(kind)
    spare.delete(kind)
    const isFresh = before && Date.now() - before.at < SPARE_SHARE * ttlS * 1000
    const grant = isFresh ? before : await newGrant(kind, signal)
    try {
      return await write(grant)
    } catch (error) {
      // The spare etcd lease has expired, or belongs to another cluster. Try again with a new etcd lease.
      if (isFresh && /lease not found/.test(messageOf(error))) return underLease(kind, signal, write)
      // Revoke the new etcd lease only if etcd refused the write. After any other failure etcd may have written the
      // key, and revoking the lease would delete the key.
      const isRevoked = !isFresh && isRefusal(error) && (await revokeIfBare(grant, signal).catch(() => false))
      if (!isRevoked) spare.set(kind, grant)
      throw error
    }
  }

  /**
   * Requests an etcd lease. weftd chooses the lease's id, so that the request can be repeated if the answer is lost: etcd grants an id
   * only once.
   */
  async function newGrant(kind: Kind, signal: AbortSignal): Promise<Grant> {
    const grant = { at: Date.now(), ID: newLeaseId(), TTL: String(ttlS) }
    const { ID, TTL } = grant
    try {
      const granted = await callToWrite(signal, (etcd) => etcd.leaseClient.leaseGrant({ ID, TTL }))
      return Number(granted.TTL) > 0 ? { ...grant, TTL: granted.TTL } : grant
    } catch (error) {
      if (/lease already exists/.test(messageOf(error))) return grant
      if (!isRefusal(error)) spare.set(kind, grant)
      throw error
    }
  }

  /** Revokes an etcd lease if no key is attached to it. Returns true if it was revoked. */
  async function revokeIfBare(grant: Grant, signal: AbortSignal): Promise<boolean> {
    const { ID } = grant
    const { keys } = await client.call(signal, (etcd) => etcd.leaseClient.leaseTimeToLive({ ID, keys: true }))
    if (keys.length > 0) return false
    await revoke(grant, signal)
    return true
  }

  const revoke = ({ ID }: Grant, signal: AbortSignal) =>
    client
      .call(signal, (etcd) => etcd.leaseClient.leaseRevoke({ ID }))
      .catch((error: unknown) => {
        if (!/lease not found/.test(messageOf(error))) throw error
      })

  /**
   * Writes a key if the conditions `compare` hold, and attaches it to an etcd lease unless `isForever` is true. Returns undefined if the
   * conditions do not hold.
   */
  async function putIf(
    compare: readonly Comparison[],
    key: string,
    value: string,
    isForever: boolean,
    signal: AbortSignal,
  ): Promise<Written | undefined> {
    if (!isForever) return underLease('subnets', signal, (grant) => putUnder(grant, compare, key, value, signal))
    return putUnder(undefined, compare, key, value, signal)
  }

  async function putUnder(
    grant: Grant | undefined,
    compare: readonly Comparison[],
    key: string,
    value: string,
    signal: AbortSignal,
  ): Promise<Written | undefined> {
    const result = await callToWrite(signal, (etcd) =>
      etcd.kv.txn({
        compare: compare.map((each) => ({ result: 'Equal', key: fullKey(key), ...each })),
        success: [{ request_put: { key: fullKey(key), value: Buffer.from(value), lease: grant?.ID ?? 0 } }],
        failure: [{ request_range: { key: fullKey(key) } }],
      }),
    )
    const expiresAt = grant && grant.at + Number(grant.TTL) * 1000
    if (result.succeeded) return { revision: revisionOf(result.header), expiresAt }
    if (!grant) return undefined
    // weftd repeats a call whose answer is lost. So the conditions may fail only because this call, or an earlier one
    // with the same etcd lease and another value, has already written the key.
    const present = result.responses[0]?.response_range?.kvs[0]
    if (present?.lease !== grant.ID) await revoke(grant, signal)
    else if (present.value.equals(Buffer.from(value))) return { revision: BigInt(present.mod_revision), expiresAt }
    return undefined
  }

  /** Extends the life of a key whose state is still `expected`. A full etcd still allows this. Returns undefined if the key has changed. */
  async function keepAsRead(key: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined> {
    const [pair] = (await client.call(signal, (etcd) => etcd.kv.range({ key: fullKey(key) }))).kvs
    if (!pair) return undefined
    const { revision, value, isReservation } = toEntry(pair)
    if (revision !== expected.revision || value !== expected.value) return undefined
    if (isReservation) return { revision, expiresAt: undefined }
    const at = Date.now()
    const leftS = await client.call(signal, (etcd) => keepAlive(etcd, pair.lease, signal))
    return { revision, expiresAt: at + leftS * 1000 }
  }

  /**
   * Throws WeftError GAP if the header shows that the answer comes from another cluster than the one that was watched
   * until revision `delivered`.
   */
  function checkCluster(header: etcd3.IResponseHeader | null, delivered: bigint): void {
    if (!header) return
    // A restored or replaced cluster may have a higher revision than `delivered`, so the revision does not reveal it. The cluster's id or
    // Raft term does.
    const found = clusterOf(header)
    const isOther =
      (found.cluster !== undefined && known.cluster !== undefined && found.cluster !== known.cluster) ||
      (found.term !== undefined && known.term !== undefined && found.term < known.term)
    known = { ...known, ...found }
    if (isOther) throw new WeftError('GAP', 'the cluster was restored or replaced')
    const current = BigInt(header.revision)
    if (current !== 0n && current < delivered)
      throw new WeftError('GAP', `the store went back from revision ${delivered} to ${current}`)
  }

  /**
   * Yields the batches of one watch of etcd. Returns if the server closed the connection because of too many pings; the caller then opens
   * the watch again.
   */
  async function* watchOnce(after: bigint, signal: AbortSignal): AsyncGenerator<StoreBatch, void> {
    // The watch resumes after the last delivered revision. If etcd has compacted that revision, the watch throws GAP.
    const request = { key: from, range_end: to, start_revision: String(after + 1n), progress_notify: true }
    const { responses, created, end, pingsLess } = await client.openWatch(request, signal)
    try {
      let delivered = after
      for (let response = created; ;) {
        if (response.canceled) throw gapOf(response)
        const { header } = response as { readonly header: etcd3.IResponseHeader | null }
        checkCluster(header, delivered)
        const current = BigInt(header?.revision ?? 0)
        // After a `created` response, events before its revision may still arrive, so it does not advance `delivered`. Every other
        // response without events is a progress notification: all events up to its revision were delivered.
        if (!response.created && response.events.length === 0 && current > delivered) delivered = current
        if (response.created || response.events.length === 0) yield { revision: delivered, changes: [] }
        else
          for (const batch of byRevision(response.events.map(toChange))) {
            delivered = batch.revision
            yield batch
          }
        response = await nextOf(responses)
      }
    } catch (error) {
      signal.throwIfAborted()
      if (pingsLess(error)) return
      throw isWeftError(error) ? error : client.errorOf(error)
    } finally {
      end()
    }
  }

  return {
    name: 'etcd',
    title: 'Etcd Local Manager',
    async config(signal) {
      const { kvs } = await client.call(signal, (etcd) => etcd.kv.range({ key: configKey }))
      if (kvs[0]) return kvs[0].value.toString()
      const message = 'flannel config not found in etcd store. Did you create your config using etcdv3 API?'
      const example = `etcdctl put ${options.prefix}/config '{"Network":"10.5.0.0/16"}'`
      throw new WeftError('CONFIG_MISSING', message, {
        remedy: `store a configuration with \`${example}\`, or correct --etcd-prefix`,
      })
    },
    async setConfig(text, signal) {
      await callToWrite(signal, (etcd) => etcd.kv.put({ key: configKey, value: Buffer.from(text) }))
    },
    async list(signal) {
      const range = { key: from, range_end: to }
      const { header, kvs } = await client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
      const revision = revisionOf(header)
      known = { ...clusterOf(header), ...known }
      return { revision, entries: kvs.map(toEntry) }
    },
    async ends(signal) {
      const range = { key: from, range_end: to, keys_only: true }
      const { kvs } = await client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
      const leased = kvs.filter(({ lease }) => lease !== '0')
      const ends = new Map<string, number>()
      for (let at = 0; at < leased.length; at += ENDS_ASKED) {
        const part = leased.slice(at, at + ENDS_ASKED).map(async ({ key, lease: ID }) => {
          const { TTL } = await client.call(signal, (etcd) => etcd.leaseClient.leaseTimeToLive({ ID }))
          // A TTL of -1 means that the etcd lease has expired.
          if (Number(TTL) >= 0) ends.set(key.toString().slice(directory.length), Date.now() + Number(TTL) * 1000)
        })
        await Promise.all(part)
      }
      return ends
    },
    async *watch(after, signal) {
      let delivered = after
      for (;;)
        for await (const batch of watchOnce(delivered, signal)) {
          delivered = batch.revision
          yield batch
        }
    },
    create: (key, value, signal) => putIf([{ target: 'Version', version: 0 }], key, value, false, signal),
    async update(key, value, expected, signal) {
      try {
        return await putIf(asRead(expected), key, value, expected.isReservation ?? false, signal)
      } catch (error) {
        if (!isFull(error)) throw error
        const kept = await keepAsRead(key, expected, signal)
        // If etcd is full, extending the key's life is enough only if the value stays the same and the etcd lease has not expired yet.
        if (kept && (value !== expected.value || (kept.expiresAt ?? Infinity) <= Date.now())) throw error
        return kept && { ...kept, unwritten: describeError(error) }
      }
    },
    async delete(key, expected, signal) {
      const result = await client.call(signal, (etcd) =>
        etcd.kv.txn({
          compare: asRead(expected).map((each) => ({ result: 'Equal', key: fullKey(key), ...each })),
          success: [{ request_delete_range: { key: fullKey(key) } }],
          failure: [],
        }),
      )
      return result.succeeded
    },
    async claim(name, value, signal) {
      const key = claimKey(name)
      const { kvs } = await client.call(signal, (etcd) => etcd.kv.range({ key }))
      const before = kvs[0]?.value.toString()
      if (before === value) return before
      await underLease('claim', signal, ({ ID: lease }) =>
        callToWrite(signal, (etcd) => etcd.kv.put({ key, value: Buffer.from(value), lease })),
      )
      return before
    },
    async claims(since, signal) {
      const folder = `${posix.join(options.prefix, 'weft')}/`
      const range = {
        key: Buffer.from(folder),
        range_end: Buffer.from(folder.replace(/\/$/, '0')),
        // With min_mod_revision etcd sends only claims that were written after `since`. With thousands of nodes nearly
        // all claims are older.
        ...(since === undefined ? {} : { min_mod_revision: String(since + 1n) }),
      }
      const { header, kvs } = await client.call(signal, (etcd) => etcd.kv.range(range), LIST_TIMEOUT_MS)
      const values = new Map(kvs.map(({ key, value }) => [key.toString().slice(folder.length), value.toString()]))
      return { revision: revisionOf(header), isWhole: since === undefined, values }
    },
    async unclaim(name, value, signal) {
      const key = claimKey(name)
      await client.call(signal, (etcd) =>
        etcd.kv.txn({
          compare: [{ result: 'Equal', target: 'Value', key, value: Buffer.from(value) }],
          success: [{ request_delete_range: { key } }],
          failure: [],
        }),
      )
    },
    async close() {
      client.close()
    },
  }
}

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

/** Returns a random id of 63 bits for an etcd lease. It is never 0, because 0 makes etcd choose an id. */
const newLeaseId = (): string => String((randomBytes(8).readBigUInt64BE() >> 1n) | 1n)

/** The text of etcd's ErrNoSpace (api/v3rpc/rpctypes/error.go). */
const FULL = 'database space exceeded'
const isFull = (error: unknown): boolean => messageOf(error).includes(FULL)
/** True if the error means that etcd refused the write, so the write has not happened. */
const isRefusal = (error: unknown): boolean => isWeftError(error, 'STORE') || isFull(error)

/** Renews an etcd lease. Returns its remaining lifetime in seconds; 0 if the lease has expired. */
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
    // Bytes that are not UTF-8 became U+FFFD when the value was read. Then the original bytes are not known, so only the revision is
    // compared.
    ...(value.includes('\uFFFD') ? [] : [{ target: 'Value', value: Buffer.from(value) } as const]),
  ]
}

/**
 * Returns the error for a watch that the server ended. Reasons are a compacted history, an expired token, and a cancellation by an
 * administrator.
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
