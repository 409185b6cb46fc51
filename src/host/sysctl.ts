// sysctl.ts - kernel settings below /proc/sys.

import { writeFile } from 'node:fs/promises'

/**
 * Sets `net.ipv4.conf.flannel0.accept_local` and the like, given with slashes for dots. False when it may not be written,
 * as in a container whose /proc/sys is read-only.
 */
export async function setSysctl(name: string, value: string): Promise<boolean> {
  try {
    await writeFile(`/proc/sys/${name}`, value)
    return true
  } catch {
    return false
  }
}
