// wireguard.ts - who can carry WireGuard on this machine beside weftd.

import { execute } from '../../lab/command.ts'

export async function kernelHasWireguard(): Promise<boolean> {
  const { code } = await execute('unshare --net ip link add probe type wireguard'.split(' '))
  return code === 0
}

/** The reason why a lab's daemons can have no WireGuard device (lab/lab.ts, WIREGUARD_APART); undefined if they can. */
export async function noWireguardDevice(): Promise<string | undefined> {
  const go = await execute(['sh', '-c', 'command -v wireguard-go'])
  return go.code === 0 || (await kernelHasWireguard())
    ? undefined
    : 'neither a WireGuard in the kernel nor wireguard-go'
}
