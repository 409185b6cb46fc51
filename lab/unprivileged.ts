// unprivileged.ts - runs a program without root: it starts again as root of a new user namespace.
//
// The program also gets new network and mount namespaces and a private /run. So `ip netns` works as for root, and the program cannot change
// the host.

import { spawn } from 'node:child_process'
import { AS_ROOT_OF_OWN, whyNoDemo } from '../scripts/machine.mjs'

const PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec setpriv --pdeathsig TERM "$@"'

/**
 * Returns immediately for root and inside the namespace. Otherwise it runs this program again in the namespace, and exits with its exit code.
 * If the kernel forbids that, it prints the remedy and exits with 1.
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
  // The terminal sends its signals to both processes. This process waits until the other has cleaned up.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))
  const code = await new Promise<number>((resolve) => child.once('exit', (status) => resolve(status ?? 1)))
  process.exit(code)
}
