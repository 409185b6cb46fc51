// forwarding.ts - the loop that checks that the kernel forwards packets, because otherwise no container reaches another
// node.

import type { Log } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { defaultRoute, type ReadSysctl } from '../../host/choose-interface.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { dotted, FORWARDING } from '../../host/sysctl-names.ts'
import { getSysctl } from '../../host/sysctl.ts'
import { familiesOf, type Family } from '../../net/address.ts'
import { RESYNC_MS, type Node } from '../node.ts'

/**
 * Records the families whose packets the kernel does not forward. The start has already logged a warning about these
 * families.
 */
export async function watchForwarding(node: Node): Promise<never> {
  const { config, readSysctl, signal } = node
  for (;;) {
    const families = node.ownership.dataPath?.families ?? familiesOf(config)
    const unforwarded: Family[] = []
    for (const family of families) if ((await readSysctl?.(FORWARDING[family])) === '0') unforwarded.push(family)
    node.unforwarded = unforwarded
    await pause(signal, RESYNC_MS)
  }
}

/**
 * Warns of kernel settings that prevent forwarding now or will prevent it later. Like flanneld, weftd does not change
 * these settings.
 */
export async function warnOfForwarding(
  families: readonly Family[],
  kernel: HostKernel,
  log: Log,
  readSysctl: ReadSysctl = getSysctl,
): Promise<void> {
  if (families.includes('ipv4') && (await readSysctl(FORWARDING.ipv4)) === '0')
    log.warn(
      'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it',
    )
  if (!families.includes('ipv6')) return
  const forwarding = await readSysctl(FORWARDING.ipv6)
  if (forwarding === '0')
    log.warn(
      'net.ipv6.conf.all.forwarding is 0: no packet of a container leaves this host by IPv6 until it is 1; the bridge plugin of CNI sets it',
    )
  const route = await defaultRoute(kernel, 'ipv6')
  if (route?.protocol !== 'ra') return
  // Only an interface that does not forward accepts IPv6 router advertisements, unless its accept_ra is 2. Setting
  // `all/forwarding` to 1 makes each interface forward (Linux, addrconf_fixup_forwarding).
  const forwards = forwarding === '0' || (await readSysctl(`net/ipv6/conf/${route.device}/forwarding`)) !== '0'
  // If accept_ra is 0, another program, such as systemd-networkd or NetworkManager, handles router advertisements. That
  // program, not the kernel, made the default route, so the route stays when the kernel forwards.
  const accepting = `net/ipv6/conf/${route.device}/accept_ra`
  if (forwards && (await readSysctl(accepting)) === '1')
    log.warn(
      `The IPv6 default route of ${route.device} comes from a router's advertisements, which the kernel ignores if it forwards IPv6: this host loses the route unless ${dotted(accepting)} is 2`,
    )
}
