// sysctl.ts - reads kernel settings below /proc/sys.

import { readFile } from 'node:fs/promises'

/** Reads a kernel setting such as `net/ipv4/ip_forward`. Returns undefined if the setting cannot be read. */
export async function getSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
  } catch {
    return undefined
  }
}
