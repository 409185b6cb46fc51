// unprivileged.ts - without root: the program runs again as root of a user namespace of its own.
//
// With network and mount namespaces too, and a private /run, `ip netns` works there as it does for root, and nothing
// outside can be touched.

import { spawn } from 'node:child_process'
import { AS_ROOT_OF_OWN, whyNoDemo } from '../scripts/machine.mjs'

const PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec setpriv --pdeathsig TERM "$@"'

/**
 * Returns at once for root and inside the namespace. Otherwise runs this program again there and ends with its exit
 * code; or says what to do when the kernel forbids that.
 */
export async function becomeRoot(): Promise<void> {
  const hindrance = whyNoDemo()
  if (hindrance !== undefined) {
    process.stderr.write(`${hindrance}\n`)
    process.exit(1)
  }
  if (process.getuid?.() === 0) return
  const [file = '', ...args] = [
    ...AS_ROOT_OF_OWN,
    'sh',
    '-c',
    PRIVATE_RUN,
    'sh',
    process.execPath,
    ...process.argv.slice(1),
  ]
  const child = spawn(file, args, { stdio: 'inherit', env: { ...process.env, WEFT_UNPRIVILEGED: '1' } })
  // The terminal sends its signals to both; this one waits for the other to clean up.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))
  const code = await new Promise<number>((resolve) => child.once('exit', (status) => resolve(status ?? 1)))
  process.exit(code)
}
