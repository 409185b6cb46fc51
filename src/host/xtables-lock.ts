// xtables-lock.ts - who has the lock that the legacy kind of iptables takes before it changes rules.

import { readFile, stat } from 'node:fs/promises'

/** The lock's file, as iptables finds it (iptables/xshared.c). */
const lockFile = (): string => process.env['XTABLES_LOCKFILE'] || '/run/xtables.lock'

/** The process that has the lock, as text for people: `pid 4711 (kube-proxy)`; undefined if no process that can be seen has it. */
export async function xtablesLockHolder(file = lockFile(), proc = '/proc'): Promise<string | undefined> {
  try {
    const { ino } = await stat(file)
    const locks = await readFile(`${proc}/locks`, 'utf8')
    for (const line of locks.split('\n')) {
      // 1: FLOCK  ADVISORY  WRITE 4711 00:1b:2345 0 EOF; those that wait for it have an arrow before the kind (proc_locks(5)).
      const [, pid, inode] = /^\d+: FLOCK\s+\S+\s+WRITE\s+(-?\d+)\s+[\da-f]+:[\da-f]+:(\d+)\s/.exec(line) ?? []
      if (pid === undefined || Number(inode) !== ino) continue
      if (Number(pid) <= 0) return 'a process of another pid namespace'
      const name = await readFile(`${proc}/${pid}/comm`, 'utf8').catch(() => '')
      return name.trim() === '' ? `pid ${pid}` : `pid ${pid} (${name.trim()})`
    }
  } catch {
    // no such file: no process takes the lock
  }
  return undefined
}
