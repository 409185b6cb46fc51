// wireguard.ts - who carries WireGuard on this machine beside weftd: the "DataPath" that `wg` can be asked about.

import { execute } from '../../lab/command.ts'

/** The kernel where it has it, else wireguard-go. */
export async function deviceDataPath(): Promise<'kernel' | 'wireguard-go'> {
  const { code } = await execute('unshare --net ip link add probe type wireguard'.split(' '))
  return code === 0 ? 'kernel' : 'wireguard-go'
}
