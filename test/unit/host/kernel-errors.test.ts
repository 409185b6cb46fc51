// kernel-errors.test.ts - which error of several changes is thrown, and which means that an object is gone already.

import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import {
  applyChange,
  applyChanges,
  errnoOf,
  isGone,
  removeAll,
  selinuxRemedy,
} from '../../../src/host/kernel-errors.ts'
import type { Change } from '../../../src/host/kernel.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

const refusal = (errno: string): WeftError =>
  new WeftError('KERNEL', errno, { cause: { errno, explanation: undefined } })
/** A kernel that returns these errors, and the changes that it got. */
function kernelWith(...errnos: (string | undefined)[]): { readonly kernel: ModelKernel; readonly got: Change[] } {
  const got: Change[] = []
  const kernel = new ModelKernel()
  kernel.change = (changes) => {
    got.push(...changes)
    return Promise.resolve(errnos.map((errno) => (errno === undefined ? undefined : refusal(errno))))
  }
  return { kernel, got }
}
const UP: Change = { kind: 'set link', device: { name: 'eth0' }, up: true }

it('finds the error number of a refusal only', () => {
  expect(errnoOf(refusal('EEXIST'))).toBe('EEXIST')
  for (const error of [undefined, new Error('x'), new WeftError('COMMAND', 'x'), 'EEXIST'])
    expect(errnoOf(error)).toBeUndefined()
})

it.each([
  ['ENODEV', true],
  ['ENOENT', true],
  ['ESRCH', true],
  ['EADDRNOTAVAIL', true],
  ['EPERM', false],
  ['EBUSY', false],
])('judges whether %s means that the object is gone: %s', (errno, gone) => {
  expect(isGone(refusal(errno))).toBe(gone)
})

describe('changes', () => {
  it('are made together, and the first error is thrown', async () => {
    const { kernel, got } = kernelWith(undefined, 'EEXIST', 'EPERM')
    await expect(applyChanges(kernel, [UP, UP, UP])).rejects.toThrow('EEXIST')
    expect(got).toHaveLength(3)
    await expect(applyChange(kernelWith('EBUSY').kernel, UP)).rejects.toThrow('EBUSY')
    await applyChanges(kernelWith(undefined).kernel, [UP])
  })

  it('that remove objects ignore those that are gone', async () => {
    await removeAll(kernelWith('ENODEV', undefined, 'ESRCH').kernel, [UP, UP, UP])
    await expect(removeAll(kernelWith('ENODEV', 'EPERM').kernel, [UP, UP])).rejects.toThrow('EPERM')
  })
})

it.each([
  ['system_u:system_r:container_t:s0:c1,c2\0', 'system_u:system_r:container_t:s0:c1,c2'],
  ['system_u:system_r:kernel_t:s0\n', 'system_u:system_r:kernel_t:s0'],
  ['user_u:user_r:user_t', 'user_u:user_r:user_t'], // a policy without levels
])('names the SELinux context of the process: %j', (text, context) => {
  expect(selinuxRemedy(() => text)).toContain(`SELinux may forbid it to ${context}: `)
})

it.each(['unconfined\n', 'cri-containerd.apparmor.d (enforce)\n', ''])(
  'does not mention SELinux on a host with AppArmor or neither: %j',
  (text) => expect(selinuxRemedy(() => text)).toBeUndefined(),
)

it('does not mention SELinux if the kernel labels no processes', () => {
  const read = () => {
    throw Object.assign(new Error('EINVAL'), { code: 'EINVAL' })
  }
  expect(selinuxRemedy(read)).toBeUndefined()
})
