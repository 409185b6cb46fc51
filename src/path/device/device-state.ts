// device-state.ts - keeps a network device of the kernel up, with the right MTU and with this node's address.

import { applyChanges, removeAll } from '../../host/kernel-errors.ts'
import type { Device, HostKernel, Link } from '../../host/kernel.ts'
import { ADDRESS_BITS, familyOf, isLinkLocal, netContains, type Address, type Net } from '../../net/address.ts'

export interface DeviceState {
  /**
   * Sets the MTU and the address and brings the device up. Like flanneld (pkg/ip/iface.go), removes all other IPv4
   * addresses in `network`, or all other IPv6 addresses except link-local ones. A repeated call changes nothing.
   */
  configure(): Promise<void>
  /**
   * Describes how the device differs from the wanted state. The list is empty if the device has the wanted state or
   * does not exist.
   */
  wrong(): Promise<readonly string[]>
}

export function deviceState(kernel: HostKernel, device: Device, mtu: number, own: Address, network: Net): DeviceState {
  const family = familyOf(own)
  const find = (): Promise<Link | undefined> => kernel.link(device.index ?? device.name)
  return {
    async configure() {
      const prefixLength = ADDRESS_BITS[family]
      // Switch duplicate address detection (RFC 4862) off, because no other node has an address of this node's subnet.
      // Otherwise the kernel could not send from the address for about a second.
      const noDad = family === 'ipv6'
      await applyChanges(kernel, [
        { kind: 'set link', device, mtu, up: true },
        { kind: 'replace address', device, address: own, prefixLength, noDad },
      ])
      const addresses = (await find())?.addresses[family] ?? []
      const isOld = (address: Address): boolean =>
        family === 'ipv6' ? !isLinkLocal(address) : netContains(network, address)
      const old = addresses.filter(({ address }) => address !== own && isOld(address))
      await removeAll(
        kernel,
        old.map((each) => ({
          kind: 'delete address',
          device,
          address: each.address,
          prefixLength: each.prefixLength,
        })),
      )
    },
    async wrong() {
      const link = await find()
      if (!link) return []
      if (!link.up) return [`${device.name} was down`]
      if (link.mtu !== mtu) return [`${device.name} had MTU ${link.mtu}`]
      return link.addresses[family].some((each) => each.address === own) ? [] : [`${device.name} had lost its address`]
    },
  }
}
