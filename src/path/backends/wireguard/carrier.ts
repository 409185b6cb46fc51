// carrier.ts - chooses whether the kernel or weftd itself carries WireGuard's packets.

import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import { applyChange, removeAll } from '../../../host/kernel-errors.ts'
import type { Device, HostKernel } from '../../../host/kernel.ts'
import { KINDS, type Settings } from '../../catalog.ts'

export type Carrier = NonNullable<Settings<'wireguard'>['dataPath']>

const NODE_REMEDY = 'run weftd with a Node.js whose OpenSSL has the ciphers (3.x, not in FIPS mode)'
/** The name of the device that `withTestDevice` creates. */
const TEST_DEVICE = 'weft-wg-try'

/**
 * Chooses whether the kernel or weftd carries the packets. Uses the configured choice. Without a configured choice,
 * chooses the kernel if it supports WireGuard, and otherwise weftd.
 */
export async function chooseCarrier(
  wanted: Carrier | undefined,
  lacks: readonly string[],
  kernel: HostKernel,
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
  try {
    await withTestDevice(kernel, async () => {})
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

/**
 * Creates a WireGuard device, calls `work` with the device, and deletes the device. Throws WeftError NO_DEVICE_TYPE if
 * the kernel does not support WireGuard.
 */
export async function withTestDevice<T>(kernel: HostKernel, work: (device: Device) => Promise<T>): Promise<T> {
  const device: Device = { name: TEST_DEVICE }
  const removeDevice = (): Promise<void> => removeAll(kernel, [{ kind: 'delete link', device }])
  // Delete the test device that an earlier weftd left, because that weftd was killed in this function.
  if (await kernel.link(TEST_DEVICE)) await removeDevice()
  await applyChange(kernel, { kind: 'add link', link: { name: TEST_DEVICE, type: 'wireguard' } })
  try {
    return await work(device)
  } finally {
    await removeDevice()
  }
}
