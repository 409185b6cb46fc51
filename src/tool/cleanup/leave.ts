// leave.ts - `weftd --leave`: ends the daemon that runs for a subnet file and removes all that this node is in its network.

import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { run } from '../../host/command.ts'
import type { Connection } from '../../host/unix-socket.ts'
import { predecessorAt } from '../../node/restart/predecessor.ts'
import { rendezvousAt } from '../../node/restart/rendezvous.ts'
import type { DaemonOptions } from '../../options.ts'
import { removeRemains } from './cleanup.ts'
import { findDaemons, findRunning } from './running.ts'

/** Returns true when nothing is left on the host. Throws WeftError DEVICE when a daemon hangs, or another one runs. */
export async function leave(options: DaemonOptions, log: Log): Promise<boolean> {
  const connection = meet(options, log)
  const running = connection && predecessorAt(connection)
  // The other daemon may go on after this, waiting for its service manager to stop it.
  const others = await findDaemons('/proc', running?.pid)
  if (others.length > 0)
    throw new WeftError('DEVICE', `another daemon runs on this host: ${others.join(', ')}`, {
      remedy: 'stop it first: what they left cannot be told apart',
    })
  await running?.leave()
  running?.close()
  if (!running) log.warn('No weftd runs for this subnet file that could give its lease back: the lease ends by itself')
  const left = await findRunning(run, '/proc', running?.pid)
  return removeRemains(options['subnet-file'], false, left, {
    say: (line) => log.info(line),
    warn: (line) => log.warn(line),
  })
}

function meet(options: DaemonOptions, log: Log): Connection | undefined {
  try {
    return rendezvousAt(options, (message) => log.warn(message)).connect()
  } catch (error) {
    throw new WeftError('DEVICE', `cannot ask the weftd that runs on this host: ${messageOf(error)}`, {
      remedy: 'run this as the user that runs it; or kill it, if it hangs',
      cause: error,
    })
  }
}
