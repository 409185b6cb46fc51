// charon.ts - runs several daemons with the backend ipsec on one machine.

import type { Lab } from '../../lab/lab.ts'

/**
 * Returns a command prefix (`DaemonArgs.before`) that gives a daemon its own empty folder /run, because charon's socket and pid file have
 * fixed paths in it. The lab's folder stays visible, even if it is below /run.
 */
export const apart = ({ folder }: Lab): readonly string[] => [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount --bind "$0" /mnt && mount -t tmpfs tmpfs /run && mkdir -p "$0" && mount --move /mnt "$0" && exec "$@"',
  folder,
]
