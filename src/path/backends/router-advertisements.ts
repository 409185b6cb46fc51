// router-advertisements.ts - makes the kernel ignore IPv6 router advertisements that arrive through the tunnel.
//
// The kernel's vxlan device accepts datagrams from every address, so a container of another host can send a router
// advertisement through the device. A kernel that accepts the message sends this host's IPv6 packets to the sender.

import { writeFile } from 'node:fs/promises'
import type { Log } from '../../base/log.ts'
import { disablingIpv6, dotted } from '../../host/sysctl-names.ts'
import { getSysctl } from '../../host/sysctl.ts'

/** Reads and writes kernel settings below /proc/sys. */
interface Sysctl {
  /** Returns a setting; undefined if the setting cannot be read. */
  readonly read: (name: string) => Promise<string | undefined>
  readonly write: (name: string, value: string) => Promise<void>
}

const systemSysctl: Sysctl = {
  read: getSysctl,
  write: (name, value) => writeFile(`/proc/sys/${name}`, value),
}

/**
 * Makes the kernel ignore router advertisements that arrive on a device. In most containers /proc/sys is read-only, so
 * this may fail. Logs a warning if the kernel still accepts router advertisements. Logs none if IPv6 is disabled.
 */
export async function refuseRouterAdvertisements(
  device: string,
  log: Pick<Log, 'warn'>,
  { read, write }: Sysctl = systemSysctl,
): Promise<void> {
  const setting = `net/ipv6/conf/${device}/accept_ra`
  await write(setting, '0').catch(() => {}) // the check below finds the failure
  const accepts = await read(setting)
  if (accepts === undefined || accepts === '0') return
  // With accept_ra 1 the kernel ignores router advertisements on a device that forwards (Linux, ipv6_accept_ra).
  if (accepts !== '2' && (await read(`net/ipv6/conf/${device}/forwarding`)) !== '0') return
  if ((await read(disablingIpv6(device))) === '1') return
  log.warn(
    `${device} accepts IPv6 router advertisements, which containers of other hosts can send, because weftd cannot write /proc/sys: ` +
      `run \`sysctl -w ${dotted(setting)}=0\` on the host`,
  )
}
