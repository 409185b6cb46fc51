// xtables-lock.ts - finds the process that holds the lock of legacy iptables, which serialises changes of rules.

import { readFile, stat } from 'node:fs/promises'

/**
 * Returns the path of the lock file of legacy iptables. The function follows the rule of iptables itself
 * (iptables/xshared.c).
 */
const lockFile = (): string => process.env['XTABLES_LOCKFILE'] || '/run/xtables.lock'

/**
 * Describes the process that holds the lock of legacy iptables, such as `pid 4711 (kube-proxy)`. Returns undefined if
 * no visible process holds the lock.
 */
export async function xtablesLockHolder(file = lockFile(), proc = '/proc'): Promise<string | undefined> {
  try {
    const { ino } = await stat(file)
    const locks = await readFile(`${proc}/locks`, 'utf8')
    for (const line of locks.split('\n')) {
      // Match a line of /proc/locks such as `1: FLOCK  ADVISORY  WRITE 4711 00:1b:2345 0 EOF` (proc_locks(5)). The line
      // of a process that waits for a lock has `->` after the number, and does not match.
      const [, pid, inode] = /^\d+: FLOCK\s+\S+\s+WRITE\s+(-?\d+)\s+[\da-f]+:[\da-f]+:(\d+)\s/.exec(line) ?? []
      if (pid === undefined || Number(inode) !== ino) continue
      if (Number(pid) <= 0) return 'a process of another pid namespace'
      const name = await readFile(`${proc}/${pid}/comm`, 'utf8').catch(() => '')
      return name.trim() === '' ? `pid ${pid}` : `pid ${pid} (${name.trim()})`
    }
  } catch {
    // If the lock file does not exist, no process holds the lock.
  }
  return undefined
}
