// sysctl.ts - kernel settings below /proc/sys.

import { readFile, writeFile } from 'node:fs/promises'

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

/** The value of `net.ipv4.ip_forward` and the like, given with slashes; undefined where there is none to be read. */
export async function getSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
  } catch {
    return undefined
  }
}
