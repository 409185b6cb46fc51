// refusal.ts - makes the errors for requests that the kernel refused. All functions are pure.

import { constants } from 'node:os'
import { WeftError } from '../../base/errors.ts'
import { NEEDS_NET_ADMIN } from '../command.ts'
import { wordsOf } from '../ip-words.ts'
import type { Change, KernelRefusal } from '../kernel.ts'
import { errnoName, errnoText } from './errno.ts'
import type { Refusal } from './socket.ts'

const { EOPNOTSUPP, ETIMEDOUT } = constants.errno

/** The remedies for errors with which the kernel refuses any request, by the name of the error number. */
const REMEDIES: Readonly<Record<string, string>> = {
  EMFILE: 'raise the limit of open files of this process (LimitNOFILE of systemd, or `ulimit -n`)',
  ENFILE: 'raise the limit of open files of this host (sysctl fs.file-max)',
}

/** Returns the error for a refused request to list the kernel objects `what`. */
export const readError = (what: string, refusal: Refusal): WeftError =>
  errorOf(`the kernel refused to list ${what}`, refusal)

/** Returns the error with which the kernel refused a change; undefined if the kernel accepted the change. */
export function changeError(change: Change, refusal: Refusal): WeftError | undefined {
  if (refusal.errno === 0) return undefined
  const error = errorOf(`the kernel refused \`${wordsOf(change)}\``, refusal)
  // For a device of an unknown type, the kernel returns the general error number EOPNOTSUPP.
  if (change.kind !== 'add link' || refusal.errno !== EOPNOTSUPP) return error
  const { type } = change.link
  return new WeftError('NO_DEVICE_TYPE', `this kernel has no device of type ${type} (${error.message})`, {
    remedy:
      `load its module (\`modprobe ${type}\`), remove "DataPath" from Backend if it is there (weftd then carries the packets itself), ` +
      'or use another backend',
    cause: error.cause,
  })
}

function errorOf(prefix: string, { errno, explanation }: Refusal): WeftError {
  const name = errnoName(errno)
  const text = errno === ETIMEDOUT ? 'the kernel did not answer in time' : errnoText(name)
  const cause: KernelRefusal = { errno: name, explanation }
  const message = `${prefix}: ${text}${explanation === undefined ? '' : ` (${explanation})`}`
  if (name === 'EPERM') return new WeftError('PERMISSION', message, { remedy: NEEDS_NET_ADMIN, cause })
  return new WeftError('KERNEL', message, { remedy: REMEDIES[name], cause })
}
