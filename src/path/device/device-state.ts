// device-state.ts - keeps a kernel device up, with its MTU and the node's address.

import type { Run } from '../../host/command.ts'
import { findLink } from '../../host/links.ts'
import { familyOf, formatAddress, formatNet, hostNet, netContains, type Address, type Net } from '../../net/address.ts'

export interface DeviceState {
  /** Sets the complete state; repeating it changes nothing. Removes addresses of an earlier lease. */
  configure(): Promise<void>
  /** Returns the differences from the wanted state, in words. */
  wrong(): Promise<readonly string[]>
}

export function deviceState(run: Run, name: string, mtu: number, own: Address, network: Net): DeviceState {
  const family = familyOf(own)
  // The address belongs to this node's subnet, so it needs no duplicate address detection (RFC 4862), during which it could not send.
  const words = family === 'ipv6' ? ['nodad'] : []
  return {
    async configure() {
      await run('ip', ['link', 'set', 'dev', name, 'mtu', String(mtu), 'up'])
      await run('ip', ['address', 'replace', formatNet(hostNet(own)), 'dev', name, ...words])
      const link = await findLink(run, name)
      for (const each of link?.addresses[family] ?? [])
        if (each.address !== own && netContains(network, each.address))
          await run('ip', ['address', 'del', `${formatAddress(each.address)}/${each.prefixLength}`, 'dev', name])
    },
    async wrong() {
      const link = await findLink(run, name)
      if (!link) return []
      if (!link.up) return [`${name} was down`]
      if (link.mtu !== mtu) return [`${name} had MTU ${link.mtu}`]
      return link.addresses[family].some((each) => each.address === own) ? [] : [`${name} had lost its address`]
    },
  }
}
