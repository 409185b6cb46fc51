// sysctl-names.ts - the names of kernel settings below /proc/sys. Pure: the status page may load it.

import type { Family } from '../net/address.ts'

/** For each family the kernel setting that makes the host forward packets. */
export const FORWARDING: Readonly<Record<Family, string>> = {
  ipv4: 'net/ipv4/ip_forward',
  ipv6: 'net/ipv6/conf/all/forwarding',
}

/** For each family the kernel setting that makes the host answer no echo requests. */
export const ECHO_IGNORED: Readonly<Record<Family, string>> = {
  ipv4: 'net/ipv4/icmp_echo_ignore_all',
  ipv6: 'net/ipv6/icmp/echo_ignore_all',
}

/** Returns the kernel setting that makes the host forward the IPv4 packets that arrive on an interface. */
export const forwardingOf = (device: string): string => `net/ipv4/conf/${device}/forwarding`

/** Returns the kernel setting that disables IPv6 on an interface. */
export const disablingIpv6 = (device: string): string => `net/ipv6/conf/${device}/disable_ipv6`

/**
 * Converts the path of a kernel setting below /proc/sys to the name for sysctl(8). For example,
 * `net/ipv6/conf/eth0.7/accept_ra` becomes `net.ipv6.conf.eth0/7.accept_ra`.
 */
export const dotted = (name: string): string => name.replaceAll(/[./]/g, (mark) => (mark === '/' ? '.' : '/'))
