// device-state.ts - keeps a network device of the kernel up, with the right MTU and with this node's address.

import type { Run } from '../../host/command.ts'
import { findLink, type Named } from '../../host/links.ts'
import { familyOf, formatAddress, formatNet, hostNet, netContains, type Address, type Net } from '../../net/address.ts'

export interface DeviceState {
  /**
   * Sets the MTU and the address and brings the device up, and removes addresses of an earlier lease. A repeated call
   * changes nothing.
   */
  configure(): Promise<void>
  /**
   * Describes how the device differs from the wanted state. The list is empty if the device has the wanted state or
   * does not exist.
   */
  wrong(): Promise<readonly string[]>
}

export function deviceState(run: Run, device: Named, mtu: number, own: Address, network: Net): DeviceState {
  const family = familyOf(own)
  // Switch duplicate address detection (RFC 4862) off (`nodad`), because no other node has an address of this node's
  // subnet. Otherwise the kernel could not send from the address for about a second.
  const words = family === 'ipv6' ? ['nodad'] : []
  return {
    async configure() {
      await run('ip', ['link', 'set', 'dev', device.name, 'mtu', String(mtu), 'up'])
      await run('ip', ['address', 'replace', formatNet(hostNet(own)), 'dev', device.name, ...words])
      const link = await findLink(run, device.name)
      for (const each of link?.addresses[family] ?? [])
        if (each.address !== own && netContains(network, each.address))
          await run('ip', ['address', 'del', `${formatAddress(each.address)}/${each.prefixLength}`, 'dev', device.name])
    },
    async wrong() {
      const link = await findLink(run, device.name)
      if (!link) return []
      if (!link.up) return [`${device.name} was down`]
      if (link.mtu !== mtu) return [`${device.name} had MTU ${link.mtu}`]
      return link.addresses[family].some((each) => each.address === own) ? [] : [`${device.name} had lost its address`]
    },
  }
}
