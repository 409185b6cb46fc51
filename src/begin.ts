// begin.ts - the first of a daemon's start: it forwards as was last known, or finds who does, and loads all else then.
//
// Packets wait, or are lost, until that is done. So this file imports what it takes, and nothing more: test/netns/quick-start.test.ts and
// test/unit/begin.test.ts count it. The page to read first is daemon.ts.

import { setMaxListeners } from 'node:events'
import { version } from './assets.ts'
import type { Start } from './daemon.ts'
import { WeftError } from './errors.ts'
import { seldom, type Log } from './log.ts'
import { addressText } from './net/address.ts'
import { createPossession, estateOf, leaveDataPath } from './node/possession.ts'
import type { DaemonOptions } from './options.ts'
import { Superseded } from './restart/predecessor.ts'
import type { About } from './restart/protocol.ts'
import { createKept, keptName } from './restart/kept.ts'
import { lastKnownFile, readLastKnown, removeLastKnown, storeNameOf, writeLastKnown } from './restart/last-known.ts'
import { rendezvousAt } from './restart/rendezvous.ts'
import { enterSuccession } from './restart/succession.ts'
import { resume, type Resumed } from './resume.ts'
import { createEvents, type Events } from './status/events.ts'
import type { Notifier } from './status/notify.ts'
import { readPreviousNets } from './status/subnet-env.ts'

/**
 * Runs until `stopping` is aborted, which it does itself when a loop cannot go on. Always rejects: with the reason of
 * the abort, or with what was in the way of starting (a WeftError when an operator can mend it).
 */
export async function runDaemon(
  options: DaemonOptions,
  log: Log,
  stopping: AbortController,
  notifier?: Notifier,
  kept: readonly number[] = [],
  events: Events = createEvents(),
): Promise<never> {
  setMaxListeners(0, stopping.signal) // each loop listens, and each command that it waits for
  // A unit whose weftd was taken over goes on, with nothing to do: to stop is its manager's to say.
  stopping.signal.addEventListener('abort', () => {
    if (!(stopping.signal.reason instanceof Superseded)) notifier?.stopping()
  })
  const previous = await readPreviousNets(options['subnet-file'], log)
  notifier?.forget(kept.map((_, place) => keptName(place)))
  const start: Start = {
    ...{ options, log, stopping, notifier, events, previous },
    ...{ held: createPossession(), known: undefined, resumed: undefined, node: undefined },
  }
  const succession = await enterSuccession<Resumed>(successionParts(start, kept))
  try {
    const { startManager } = await import('./daemon.ts')
    return await startManager(start, succession)
  } catch (error) {
    stopping.abort(error) // nobody is served any more
    throw error
  } finally {
    await leaveEarly(start)
    succession.close()
  }
}

function successionParts(start: Start, kept: readonly number[]): Parameters<typeof enterSuccession<Resumed>>[0] {
  const { options, log, stopping } = start
  const store = storeNameOf(options)
  const calm = seldom(log)
  let left = kept
  const about = (): About => {
    const { lease = start.resumed?.lease } = start.node ?? {}
    const publicIp = (start.node?.attrs ?? lease?.attrs)?.publicIp
    return {
      version: version(),
      store,
      lease: lease && publicIp !== undefined ? { key: lease.key, publicIp: addressText(publicIp) } : undefined,
      healthPort: options['healthz-port'],
    }
  }
  // What stands in the way of writing is said by whoever keeps it written.
  const write = async (): Promise<void> => {
    if (!start.node) return
    const { writeKnown } = await import('./node/last-known.ts')
    await writeKnown(start.node).catch(() => {})
  }
  const estate = estateOf(() => start.held, log)
  return {
    ...{ log, stopping },
    rendezvous: rendezvousAt(options, (message) => log.warn(message)),
    estate: {
      ...{ ...estate, about, write },
      refusal: () => (options.persist ? undefined : 'it runs with --persist=false, and leaves nothing to others'),
      async takeBack(why) {
        await estate.takeBack(why)
        start.node?.leaseDoubt.ring() // what the other one wrote is not this one's
        await write()
      },
    },
    async kept() {
      start.known = await readLastKnown(lastKnownFile(options), log)
      const fds = left
      left = []
      return createKept(fds, start.known)
    },
    resume: (inheritance) =>
      start.held.inTurn(async () => {
        if (start.held.lent) return 'failed' // it is for whoever takes over
        const resumed = await resume(start.known, options, inheritance, start.held, calm, stopping.signal)
        if (typeof resumed !== 'string') start.held = start.resumed = resumed
        return resumed
      }),
    check(before) {
      if (before.store === store) return
      throw new WeftError(
        'DEVICE',
        `another weftd runs on this host for the store ${before.store}; this one's is ${store}`,
        { remedy: 'name the same store; or stop the other one first: this host would leave its network' },
      )
    },
  }
}

/** What forwards as last known, where no node came of it: left to the next process. */
async function leaveEarly(start: Start): Promise<void> {
  const { known, options, notifier, stopping, log } = start
  if (start.node) return
  const { reason } = stopping.signal
  if (reason instanceof Superseded && reason.how === 'leave') {
    await start.held.inTurn(async () => start.held.dataPath?.close())
    return removeLastKnown(lastKnownFile(options))
  }
  const write = async (path: unknown): Promise<void> => {
    if (known && options.persist) await writeLastKnown(lastKnownFile(options), { ...known, path })
  }
  await leaveDataPath(() => start.held, write, notifier, log)
}
