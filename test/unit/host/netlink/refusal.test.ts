// refusal.test.ts - the errors for requests that the kernel refused.

import { expect, it } from 'vitest'
import type { Change } from '../../../../src/host/kernel.ts'
import { changeError, readError } from '../../../../src/host/netlink/refusal.ts'
import { isMissing, isMissingFamily } from '../../../../src/host/netlink/socket.ts'

const UP: Change = { kind: 'set link', device: { name: 'eth0' }, up: true }
const ADD: Change = { kind: 'add link', link: { name: 'i0', type: 'ipip' } }

it('has no error for an accepted change', () => {
  expect(changeError(UP, { errno: 0, explanation: undefined })).toBeUndefined()
})

it("has the change in words of `ip`, the error's text and the kernel's explanation", () => {
  expect(changeError(UP, { errno: 17, explanation: 'it is there' })).toMatchObject({
    code: 'KERNEL',
    message: 'the kernel refused `ip link set dev eth0 up`: File exists (it is there)',
    cause: { errno: 'EEXIST', explanation: 'it is there' },
  })
})

it('names the capability that is missing', () => {
  expect(changeError(UP, { errno: 1, explanation: undefined })).toMatchObject({
    code: 'PERMISSION',
    message: 'the kernel refused `ip link set dev eth0 up`: Operation not permitted',
    remedy: expect.stringContaining('CAP_NET_ADMIN'),
    cause: { errno: 'EPERM', explanation: undefined },
  })
})

it('names the type of a device that the kernel does not have', () => {
  expect(changeError(ADD, { errno: 95, explanation: 'Unknown device type' })).toMatchObject({
    code: 'NO_DEVICE_TYPE',
    message:
      'this kernel has no device of type ipip (the kernel refused `ip link add i0 type ipip`: Operation not supported (Unknown device type))',
    remedy: expect.stringContaining('modprobe ipip'),
    cause: { errno: 'EOPNOTSUPP', explanation: 'Unknown device type' },
  })
  expect(changeError(UP, { errno: 95, explanation: undefined })).toMatchObject({ code: 'KERNEL' })
})

it('has a remedy if no socket can be opened', () => {
  expect(readError('routes', { errno: 24, explanation: undefined })).toMatchObject({
    code: 'KERNEL',
    message: 'the kernel refused to list routes: Too many open files',
    remedy: expect.stringContaining('LimitNOFILE'),
  })
  expect(readError('routes', { errno: 23, explanation: undefined }).remedy).toContain('fs.file-max')
})

it('says that a kernel did not answer', () => {
  expect(readError('routes', { errno: 110, explanation: undefined })).toMatchObject({
    code: 'KERNEL',
    message: 'the kernel refused to list routes: the kernel did not answer in time',
    cause: { errno: 'ETIMEDOUT' },
  })
})

it.each([
  [19, true, false],
  [2, true, false],
  [97, false, true],
  [95, false, true],
  [22, false, false],
])('judges the error %i of a listing', (errno, missing, missingFamily) => {
  const refusal = { errno, explanation: undefined }
  expect([isMissing(refusal), isMissingFamily(refusal)]).toEqual([missing, missingFamily])
})
