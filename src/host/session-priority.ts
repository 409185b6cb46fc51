// session-priority.ts - gives this session the priority of the forwarding threads.
//
// With autogroups (Linux 2.6.38, sched(7)), which Debian has on, each session is a group of the scheduler, and a thread's own
// priority counts against those of its session alone. A service manager starts each service in a session of its own, so that
// there the session's counts. In a cgroup whose parent has the cpu controller on, neither does: there its weight does.

import { readFileSync, writeFileSync } from 'node:fs'

const FILE = '/proc/self/autogroup'

/**
 * Raises the session's priority where the session is this process's own: a shell's session is the shell's. A refusal is
 * ignored.
 */
export function raiseSession(nice: number): void {
  try {
    // proc_pid_stat(5): what follows the name are state, parent, process group, session.
    const session = readFileSync('/proc/self/stat', 'utf8')
      .replace(/^.*\) /, '')
      .split(' ')[3]
    if (Number(session) !== process.pid || readFileSync(FILE, 'utf8').trim().endsWith(` nice ${nice}`)) return
    writeFileSync(FILE, String(nice))
  } catch {
    // The kernel has no autogroups, or forbids it: the threads' own priority tells that.
  }
}
