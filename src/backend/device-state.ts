// device-state.ts - what a device of ours must be beside its type: up, of its MTU, with the node's address on it.

import type { Run } from '../host/command.ts'
import { findLink } from '../host/links.ts'
import { formatIpv4, ipv4NetContains, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'

export interface DeviceState {
  /** Said as a whole, so that saying it again changes nothing. Addresses of an earlier lease go. */
  configure(): Promise<void>
  /** What others changed. */
  wrong(): Promise<readonly string[]>
}

export function deviceState(run: Run, name: string, mtu: number, own: Ipv4, network: Ipv4Net): DeviceState {
  return {
    async configure() {
      await run('ip', ['link', 'set', 'dev', name, 'mtu', String(mtu), 'up'])
      await run('ip', ['address', 'replace', `${formatIpv4(own)}/32`, 'dev', name])
      const link = await findLink(run, name)
      for (const each of link?.addresses ?? [])
        if (each.address !== own && ipv4NetContains(network, each.address))
          await run('ip', ['address', 'del', `${formatIpv4(each.address)}/${each.prefixLength}`, 'dev', name])
    },
    async wrong() {
      const link = await findLink(run, name)
      if (!link) return []
      if (!link.up) return [`${name} was down`]
      if (link.mtu !== mtu) return [`${name} had MTU ${link.mtu}`]
      return link.addresses.some((each) => each.address === own) ? [] : [`${name} had lost its address`]
    },
  }
}
