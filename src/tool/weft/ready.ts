// ready.ts - `weft ready`: its exit code says whether containers can be started on this node.

import { isWeftError, WeftError } from '../../base/errors.ts'
import { pause } from '../../host/bell.ts'
import { command, EXIT, SOCKET_FLAG } from './command.ts'
import { fetchReady, fetchStatus } from './daemon-client.ts'

const RETRY_MS = 200

const flags = {
  wait: { default: 0, placeholder: 'SECONDS', help: 'wait at most this many seconds until the node is ready' },
  ...SOCKET_FLAG,
}

export const readyCommand = command({
  name: 'ready',
  does: 'report by the exit code whether containers can start on this node',
  more: 'Exits with 0 once the daemon at this socket forwards and has written subnet.env, with 3 before, and with 1 if no daemon answers.',
  flags,
  async run({ options, screen, signal }) {
    const { wait, 'status-socket': socket } = options
    if (!(wait >= 0))
      throw new WeftError('USAGE', `--wait is ${wait}`, { remedy: 'give a number of seconds, or 0 for no wait' })
    const until = performance.now() + wait * 1_000
    for (;;) {
      const isLast = performance.now() >= until
      try {
        if (await fetchReady(socket, signal)) {
          screen.write('ready\n')
          return EXIT.ok
        }
      } catch (error) {
        // Ask weftd again if it does not answer, because a weftd that has just started may not have opened its socket
        // yet.
        if (isLast || !isWeftError(error, 'COMMAND')) throw error
      }
      if (isLast) break
      await pause(signal, Math.min(RETRY_MS, Math.max(0, until - performance.now())))
    }
    screen.write(`not ready: ${(await fetchStatus(socket, signal)).summary}\n`)
    return EXIT.wrong
  },
})
