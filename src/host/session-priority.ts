// session-priority.ts - gives this session the priority of the forwarding threads.
//
// With autogroups (Linux 2.6.38, sched(7)), which Debian enables, each session is a scheduling group, and a thread's
// priority counts only within its session. A service manager starts each service in a session of its own, so weftd must
// raise the priority of its session. In a cgroup whose parent has the cpu controller enabled, the kernel uses only the
// weight of the cgroup, and ignores the priorities of threads and sessions across cgroups.

import { readFileSync, writeFileSync } from 'node:fs'

const FILE = '/proc/self/autogroup'

/**
 * Gives this process's session the nice value `nice`, if this process leads the session. If an operator starts weftd in
 * a shell, the shell leads the session, so the session is not changed. Does nothing if the kernel refuses.
 */
export function raiseSession(nice: number): void {
  try {
    // In /proc/self/stat the process name is followed by state, parent, process group and session (proc_pid_stat(5)).
    // The session is the fourth field after the name.
    const session = readFileSync('/proc/self/stat', 'utf8')
      .replace(/^.*\) /, '')
      .split(' ')[3]
    if (Number(session) !== process.pid || readFileSync(FILE, 'utf8').trim().endsWith(` nice ${nice}`)) return
    writeFileSync(FILE, String(nice))
  } catch {
    // Ignore the failure. Either the kernel has no autogroups, or this process lacks the permission. weftd logs a
    // missing permission later, when it sets the priority of its forwarding threads.
  }
}
