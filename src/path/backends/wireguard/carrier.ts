// carrier.ts - chooses whether the kernel or weftd itself carries WireGuard's packets.

import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import type { Run } from '../../../host/command.ts'
import { addDevice, findLink } from '../../../host/links.ts'
import { KINDS, type Settings } from '../../catalog.ts'

export type Carrier = NonNullable<Settings<'wireguard'>['dataPath']>

const NODE_REMEDY = 'run weftd with a Node.js whose OpenSSL has the ciphers (3.x, not in FIPS mode)'
/** The name of a device that weftd creates and deletes to test whether the kernel supports WireGuard. */
const TRIED = 'weft-wg-try'

/**
 * Chooses whether the kernel or weftd carries the packets. Uses the configured choice; without one, the kernel if it
 * supports WireGuard, otherwise weftd.
 */
export async function chooseCarrier(
  wanted: Carrier | undefined,
  lacks: readonly string[],
  run: Run,
  log: Log,
): Promise<Carrier> {
  const { name: option } = KINDS.wireguard.options.dataPath
  const lack = `this Node.js has no ${lacks.join(', no ')}`
  if (wanted === 'userspace' && lacks.length > 0)
    throw new WeftError('DEVICE', `${lack}: weftd cannot carry WireGuard itself`, {
      remedy: `${NODE_REMEDY}, or leave out Backend.${option}`,
    })
  if (wanted !== undefined) {
    const who = wanted === 'userspace' ? 'weftd itself' : 'the kernel'
    log.info(`WireGuard is carried by ${who}: "${option}" is "${wanted}"`)
    return wanted
  }
  const removeTried = (): Promise<unknown> => run('ip', ['link', 'del', TRIED])
  // Delete the test device that an earlier weftd left because it was killed in this function.
  if (await findLink(run, TRIED)) await removeTried()
  try {
    await addDevice(run, TRIED, 'wireguard', [])
    await removeTried()
    return 'kernel'
  } catch (error) {
    if (!isWeftError(error, 'NO_DEVICE_TYPE')) throw error
    if (lacks.length > 0)
      throw new WeftError('DEVICE', `WireGuard cannot be carried: ${messageOf(error)}, and ${lack}`, {
        remedy: NODE_REMEDY + ', or load the module `wireguard` into the kernel',
        cause: error,
      })
    log.info(`WireGuard is carried by weftd itself: ${messageOf(error)}`)
    return 'userspace'
  }
}
