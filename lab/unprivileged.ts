// unprivileged.ts - without root: the program runs again as root of a user namespace of its own.
//
// With network and mount namespaces too, and a private /run, `ip netns` works there as it does for root, and nothing
// outside can be touched.

import { spawn, spawnSync } from 'node:child_process'

const WRAPPER = ['unshare', '--user', '--map-root-user', '--net', '--mount', '--']
const PRIVATE_RUN = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec "$@"'

/**
 * Returns at once for root and inside the namespace. Otherwise runs this program again there and ends with its exit
 * code; or says what to do when the kernel forbids that.
 */
export async function becomeRoot(): Promise<void> {
  if (process.getuid?.() === 0) return
  const probe = spawnSync('unshare', ['--user', '--map-root-user', '--net', '--mount', '--', 'sh', '-c', 'mount -t tmpfs tmpfs /run'], { encoding: 'utf8' })
  if (probe.status !== 0) {
    process.stderr.write(
      `This needs root, or a kernel that lets users make namespaces (${(probe.stderr ?? '').trim() || 'unshare failed'}).\n` +
        'Run it as root, or allow it: sysctl kernel.unprivileged_userns_clone=1 (Debian), ' +
        'sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)\n',
    )
    process.exit(1)
  }
  const [file = '', ...args] = [...WRAPPER, 'sh', '-c', PRIVATE_RUN, 'sh', process.execPath, ...process.argv.slice(1)]
  const child = spawn(file, args, { stdio: 'inherit', env: { ...process.env, WEFT_UNPRIVILEGED: '1' } })
  // The terminal sends its signals to both; this one waits for the other to clean up.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))
  const code = await new Promise<number>((resolve) => child.once('exit', (status) => resolve(status ?? 1)))
  process.exit(code)
}
