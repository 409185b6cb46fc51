// sysctl.ts - kernel settings below /proc/sys.

import { readFile } from 'node:fs/promises'

/** The value of `net.ipv4.ip_forward` and the like, given with slashes; undefined where there is none to be read. */
export async function getSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
  } catch {
    return undefined
  }
}
