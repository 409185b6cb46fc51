// sysctl.ts - kernel settings below /proc/sys.

import { readFile } from 'node:fs/promises'
import type { Family } from '../net/address.ts'

/** The value of `net.ipv4.ip_forward` and the like, given with slashes; undefined where there is none to be read. */
export async function getSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
  } catch {
    return undefined
  }
}

/** The settings by which a host forwards packets of others at all. */
export const FORWARDING: Readonly<Record<Family, string>> = {
  ipv4: 'net/ipv4/ip_forward',
  ipv6: 'net/ipv6/conf/all/forwarding',
}

/** As sysctl(8) takes it: `net/ipv6/conf/eth0.7/accept_ra` is `net.ipv6.conf.eth0/7.accept_ra`. */
export const dotted = (name: string): string => name.replaceAll(/[./]/g, (mark) => (mark === '/' ? '.' : '/'))
