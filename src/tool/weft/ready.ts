// ready.ts - `weft ready`: whether containers can be started on this node, by this daemon, as an exit code.

import { isWeftError, WeftError } from '../../base/errors.ts'
import { pause } from '../../host/bell.ts'
import { askReady, askStatus } from './ask.ts'
import { command, EXIT, SOCKET_FLAG } from './command.ts'

const LOOK_MS = 200

const flags = {
  wait: { default: 0, placeholder: 'SECONDS', help: 'wait so long until it is' },
  ...SOCKET_FLAG,
}

export const readyCommand = command({
  name: 'ready',
  does: 'tell by the exit code whether containers can be started on this node',
  more: 'Exits with 0 once the daemon at this socket forwards and has written subnet.env, with 3 before.',
  flags,
  async run({ options, screen, signal }) {
    const { wait, 'status-socket': socket } = options
    if (!(wait >= 0))
      throw new WeftError('USAGE', `--wait is ${wait}`, { remedy: 'give it a number of seconds, or 0 for no wait' })
    const until = performance.now() + wait * 1_000
    for (;;) {
      const isLast = performance.now() >= until
      try {
        if (await askReady(socket, signal)) {
          screen.write('ready\n')
          return EXIT.ok
        }
      } catch (error) {
        // The daemon may be about to start.
        if (isLast || !isWeftError(error, 'COMMAND')) throw error
      }
      if (isLast) break
      await pause(signal, Math.min(LOOK_MS, Math.max(0, until - performance.now())))
    }
    screen.write(`not ready: ${(await askStatus(socket, signal)).summary}\n`)
    return EXIT.wrong
  },
})
