// ipsec-facts.ts - reads the IPsec policies and states of this host, and the settings that exempt interfaces from them.

import { readFile } from 'node:fs/promises'
import type { HostKernel, IpsecSetup, Link } from '../../host/kernel.ts'
import { getSysctl } from '../../host/sysctl.ts'
import { FAMILIES, type Family } from '../../net/address.ts'

export interface IpsecFacts extends IpsecSetup {
  /** True if a program such as charon gets the keys for a policy as soon as the kernel needs them. */
  readonly hasKeyDaemon: boolean
  readonly exempt: readonly Exemption[]
}

/**
 * An interface whose packets the kernel exempts from policies. Packets that arrive on an interface with
 * `disable_policy` pass without the policies `in` and `fwd`. Packets that leave through an interface with
 * `disable_xfrm` pass without the policies `out`.
 */
interface Exemption {
  readonly setting: 'disable_policy' | 'disable_xfrm'
  readonly family: Family
  readonly device: string
}

/** Returns undefined if this host has no IPsec policies. Rejects if this process may not list the policies. */
export async function gatherIpsec(kernel: HostKernel, links: readonly Link[]): Promise<IpsecFacts | undefined> {
  const setup = await kernel.ipsec()
  if (setup.policies.length + setup.blockedByDefault.length === 0) return undefined
  const [sockets, pfkey] = await Promise.all(
    ['netlink', 'pfkey'].map((name) => readFile(`/proc/net/${name}`, 'utf8').catch(() => '')),
  )
  // Packets do not enter or leave the host's network stack through the port of a bridge, but through the bridge.
  const devices = links.filter(({ master }) => master === 0).map(({ name }) => name)
  const exempt = await Promise.all(
    FAMILIES.flatMap((family) =>
      (['disable_policy', 'disable_xfrm'] as const).map(async (setting) => {
        const isSet = async (device: string) => (await getSysctl(`net/${family}/conf/${device}/${setting}`)) === '1'
        const isForAll = await isSet('all')
        const set = await Promise.all(devices.map(async (device) => isForAll || (await isSet(device))))
        return devices.filter((_device, at) => set[at]).map((device): Exemption => ({ setting, family, device }))
      }),
    ),
  )
  return { ...setup, hasKeyDaemon: hasKeyDaemon(sockets ?? '', pfkey ?? ''), exempt: exempt.flat() }
}

/** The protocol number of IPsec's netlink sockets (NETLINK_XFRM), and the bit of the group XFRMNLGRP_ACQUIRE. */
const XFRM = 6
const ACQUIRE = 1

/**
 * Returns true if a program listens for the kernel's requests for keys: on a netlink socket (/proc/net/netlink, whose
 * columns are address, protocol, process and groups), or on a socket of PF_KEY (RFC 2367), of which /proc/net/pfkey has
 * a line each after its heading.
 */
export function hasKeyDaemon(sockets: string, pfkey: string): boolean {
  const listens = sockets.split('\n').some((line) => {
    const [, protocol, , groups = '0'] = line.trim().split(/\s+/)
    return Number(protocol) === XFRM && (Number.parseInt(groups, 16) & ACQUIRE) !== 0
  })
  return listens || pfkey.trim().split('\n').length > 1
}
