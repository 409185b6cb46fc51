// leave.ts - `weftd --leave`: ends the daemon whose subnet file --subnet-file names, deletes its lease from the store,
// and removes everything that it made on the host.

import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import type { Connection } from '../../host/unix-socket.ts'
import type { Superseded } from '../../node/restart/lender.ts'
import { predecessorAt } from '../../node/restart/predecessor.ts'
import { rendezvousAt } from '../../node/restart/rendezvous.ts'
import type { CutOptions, NodeOptions } from '../../options.ts'
import { removeRemains } from './cleanup.ts'
import { giveLeaseBack } from './lease-back.ts'
import { findDaemons, findRunning } from './running.ts'

type IsLeaseBack = Superseded['isLeaseBack']

/**
 * Makes this node leave the network. Returns true if nothing of weft is left on the host, and the lease is deleted.
 * Throws WeftError DEVICE if the daemon hangs, or another daemon runs.
 */
export async function leave(options: Pick<CutOptions, 'node' | 'store'>, log: Log): Promise<boolean> {
  const connection = meet(options.node, log)
  const running = connection && predecessorAt(connection)
  // Do not count the daemon that is leaving as another daemon, although its process may run until its service manager
  // stops it.
  const others = await findDaemons('/proc', running?.pid)
  if (others.length > 0)
    throw new WeftError('DEVICE', `another daemon runs on this host: ${others.join(', ')}`, {
      remedy: 'stop the other daemon first, because weft cannot know which daemon made which device or rule',
    })
  const isBack = await running?.leave()
  running?.close()
  if (running) tellEnd(running.pid, isBack, log)
  const mayStay = running ? await isLeftBy(isBack, options, log) : await isLeaseLeft(options, log)
  // Look for a daemon again, because a service manager may have started one while weft queried the store. Do not remove
  // the devices and routes of a running daemon.
  const left = await findRunning(hostKernel, '/proc', running?.pid)
  const isClean = await removeRemains(options.node['subnet-file'], false, left, {
    say: (line) => log.info(line),
    warn: (line) => log.warn(line),
  })
  return isClean && !mayStay
}

/**
 * Returns true if the lease of a daemon that has left the network may still be in the store. If the daemon ended before
 * it knew its lease, deletes the lease that subnet.env names.
 */
const isLeftBy = async (isBack: IsLeaseBack, { node, store }: Pick<CutOptions, 'node' | 'store'>, log: Log) =>
  isBack === 'unknown' ? !(await giveLeaseBack(node, store, log)) : isBack === false

/** Deletes the lease unless a daemon runs. Returns true if the lease may still be in the store. */
async function isLeaseLeft({ node, store }: Pick<CutOptions, 'node' | 'store'>, log: Log): Promise<boolean> {
  const running = await findRunning(hostKernel, '/proc')
  return running.length === 0 && !(await giveLeaseBack(node, store, log))
}

/**
 * Logs that the daemon has left the network. `isBack` says whether the daemon deleted its lease; `unknown` if the
 * daemon did not know its lease; undefined if the daemon cannot delete leases, or has an older version that does not
 * report the deletion.
 */
function tellEnd(pid: number | undefined, isBack: IsLeaseBack, log: Log): void {
  const who = `The weftd that ran here (pid ${pid ?? 'unknown'})`
  if (isBack === undefined || isBack === 'unknown') log.info(`${who} has left the network`)
  else if (isBack) log.info(`${who} has left the network, and has given its lease back`)
  else log.error(`${who} has left the network, but could not give its lease back: its log says why`)
}

function meet(options: NodeOptions, log: Log): Connection | undefined {
  try {
    return rendezvousAt(options, (message) => log.warn(message)).connect()
  } catch (error) {
    throw new WeftError('DEVICE', `cannot connect to the weftd that runs on this host: ${messageOf(error)}`, {
      remedy: 'run this command as the user of that weftd; if that weftd hangs, kill it',
      cause: error,
    })
  }
}
