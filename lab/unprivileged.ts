// unprivileged.ts - without root: the program runs again as root of a user namespace of its own.
//
// With network and mount namespaces too, and a private /run, `ip netns` works there as it does for root, and nothing
// outside can be touched.

import { spawn, spawnSync } from 'node:child_process'
import { accessSync, constants } from 'node:fs'

const WRAPPER = ['unshare', '--user', '--map-root-user', '--net', '--mount', '--'] as const
const PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec setpriv --pdeathsig TERM "$@"'

function refuse(need: string, remedy: string): never {
  process.stderr.write(`${need}: ${remedy}\n`)
  process.exit(1)
}

function needTun(): void {
  try {
    accessSync('/dev/net/tun', constants.R_OK | constants.W_OK)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EACCES') {
      // The kernel lets every user open it; the node's mode may not. A TUN made in a namespace of one's own harms nobody.
      refuse(
        '/dev/net/tun is not to be opened by this user',
        'run it as root, or allow it, as root: chmod 0666 /dev/net/tun',
      )
    }
    refuse(`This needs /dev/net/tun (${code})`, 'as root modprobe tun; a container needs --device /dev/net/tun')
  }
}

/**
 * Returns at once for root and inside the namespace. Otherwise runs this program again there and ends with its exit
 * code; or says what to do when the kernel forbids that.
 */
export async function becomeRoot(): Promise<void> {
  needTun()
  if (process.getuid?.() === 0) return
  const probe = spawnSync(WRAPPER[0], [...WRAPPER.slice(1), 'sh', '-c', PRIVATE_RUN, 'sh', 'true'], {
    encoding: 'utf8',
  })
  if (probe.status !== 0) {
    refuse(
      `Without root this needs a kernel that lets users make namespaces (${(probe.stderr ?? '').trim() || 'unshare failed'})`,
      'run it as root, or allow it, as root: sysctl kernel.unprivileged_userns_clone=1 (Debian), sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)',
    )
  }
  const [file, ...args] = [...WRAPPER, 'sh', '-c', PRIVATE_RUN, 'sh', process.execPath, ...process.argv.slice(1)]
  const child = spawn(file, args, { stdio: 'inherit', env: { ...process.env, WEFT_UNPRIVILEGED: '1' } })
  // The terminal sends its signals to both; this one waits for the other to clean up.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))
  const code = await new Promise<number>((resolve) => child.once('exit', (status) => resolve(status ?? 1)))
  process.exit(code)
}
