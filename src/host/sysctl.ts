// sysctl.ts - reads kernel settings below /proc/sys.

import { readFile } from 'node:fs/promises'
import type { Family } from '../net/address.ts'

/** Reads a setting such as `net/ipv4/ip_forward`; undefined if it cannot be read. */
export async function getSysctl(name: string): Promise<string | undefined> {
  try {
    return (await readFile(`/proc/sys/${name}`, 'utf8')).trim()
  } catch {
    return undefined
  }
}

/** The setting of each family that enables the forwarding of packets. */
export const FORWARDING: Readonly<Record<Family, string>> = {
  ipv4: 'net/ipv4/ip_forward',
  ipv6: 'net/ipv6/conf/all/forwarding',
}

/** Converts a name to the form of sysctl(8): `net/ipv6/conf/eth0.7/accept_ra` to `net.ipv6.conf.eth0/7.accept_ra`. */
export const dotted = (name: string): string => name.replaceAll(/[./]/g, (mark) => (mark === '/' ? '.' : '/'))
