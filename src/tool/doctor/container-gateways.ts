// container-gateways.ts - reads the gateways that the containers of this host use for their packets, from the routes in
// the network namespaces of other processes.

import { readdir, readFile, readlink } from 'node:fs/promises'
import { endianness } from 'node:os'
import { addressKey, type Address, type AddressKey } from '../../net/address.ts'
import { parseIpv6 } from '../../net/ipv6.ts'

/**
 * Returns the gateways of the default routes in all network namespaces of running processes, except the namespace of
 * this process. Leaves out processes whose namespaces this user may not read.
 */
export async function containerGateways(): Promise<readonly Address[]> {
  const unlessGone = <T>(work: Promise<T>): Promise<T | undefined> => work.catch(() => undefined)
  const seen = new Set([await unlessGone(readlink('/proc/self/ns/net'))])
  const found = new Map<AddressKey, Address>()
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const namespace = await unlessGone(readlink(`/proc/${name}/ns/net`))
    if (namespace === undefined || seen.has(namespace)) continue
    const texts = await Promise.all(
      ['route', 'ipv6_route'].map((file) => unlessGone(readFile(`/proc/${name}/net/${file}`, 'utf8'))),
    )
    if (texts.some((text) => text !== undefined)) seen.add(namespace)
    for (const gateway of [...ipv4GatewaysIn(texts[0] ?? ''), ...ipv6GatewaysIn(texts[1] ?? '')])
      found.set(addressKey(gateway), gateway)
  }
  return [...found.values()]
}

/** The flag of a route that leads to a gateway (RTF_GATEWAY in linux/route.h). */
const TO_GATEWAY = 2

/**
 * Returns the gateways of the default routes in the text of /proc/net/route. The kernel writes each address as a number
 * of the host's byte order (fib_route_seq_show in net/ipv4/fib_trie.c).
 */
export function ipv4GatewaysIn(text: string): number[] {
  return text.split('\n').flatMap((line) => {
    const [, destination, gateway = '', flags = '', , , , mask] = line.trim().split(/\s+/)
    const isDefault = destination === '00000000' && mask === '00000000'
    if (!isDefault || (Number.parseInt(flags, 16) & TO_GATEWAY) === 0) return []
    const bytes = Buffer.from(gateway, 'hex')
    return [endianness() === 'LE' ? bytes.readUInt32LE() : bytes.readUInt32BE()]
  })
}

/** Returns the gateways of the default routes in the text of /proc/net/ipv6_route (rt6_info_route in net/ipv6/route.c). */
export function ipv6GatewaysIn(text: string): bigint[] {
  return text.split('\n').flatMap((line) => {
    const [, length, , , gateway = '', , , , flags = ''] = line.trim().split(/\s+/)
    if (length !== '00' || (Number.parseInt(flags, 16) & TO_GATEWAY) === 0) return []
    return parseIpv6(gateway.replaceAll(/(.{4})(?!$)/g, '$1:')) ?? []
  })
}
