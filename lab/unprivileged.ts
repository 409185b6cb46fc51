// unprivileged.ts - lets a user without root rights run a program that needs root rights: it starts the program again
// as root of a new user namespace.
//
// The program also gets new network and mount namespaces and a private /run. So `ip netns` works in the program as for
// root, but the program cannot change the network of this machine.

import { spawn } from 'node:child_process'
import { AS_ROOT_OF_OWN, whyNoDemo } from '../scripts/machine.mjs'

const PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec setpriv --pdeathsig TERM "$@"'

/**
 * Returns if the user is already root, which includes root of a user namespace. Otherwise runs the same program again
 * as root of new namespaces, waits for it, and exits with its exit code. If the machine does not allow new namespaces,
 * prints the remedy and exits with 1.
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
  // At Ctrl-C the terminal sends SIGINT to this process and to the child, so this process ignores SIGINT and waits
  // until the child has cleaned up. SIGTERM reaches only this process, so forward SIGTERM to the child.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))
  const code = await new Promise<number>((resolve) => child.once('exit', (status) => resolve(status ?? 1)))
  process.exit(code)
}
