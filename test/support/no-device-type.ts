// no-device-type.ts - loaded with NODE_OPTIONS=--import, lets weftd find a kernel without the device types that the
// environment variable WITHOUT_DEVICE_TYPES lists.

import type { WeftError } from '../../src/base/errors.ts'
import { NetlinkKernel } from '../../src/host/netlink/host-kernel.ts'
import { changeError } from '../../src/host/netlink/refusal.ts'

const EOPNOTSUPP = 95
const MISSING = (process.env['WITHOUT_DEVICE_TYPES'] ?? '').split(' ')
const changeByKernel = Reflect.get(NetlinkKernel.prototype, 'change')

NetlinkKernel.prototype.change = async function change(changes) {
  const errors: (WeftError | undefined)[] = []
  for (const each of changes) {
    const isMissing = each.kind === 'add link' && MISSING.includes(each.link.type)
    const refusal = { errno: EOPNOTSUPP, explanation: 'Unknown device type.' }
    errors.push(isMissing ? changeError(each, refusal) : (await changeByKernel.call(this, [each]))[0])
  }
  return errors
}
