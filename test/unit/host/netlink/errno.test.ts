// errno.test.ts - names and texts of the kernel's error numbers.

import { expect, it } from 'vitest'
import { errnoName, errnoText } from '../../../../src/host/netlink/errno.ts'

it('names error numbers as the kernel does', () => {
  expect([17, 95, 11, 101].map(errnoName)).toEqual(['EEXIST', 'EOPNOTSUPP', 'EAGAIN', 'ENETUNREACH'])
  expect(errnoName(524)).toBe('524')
})

it('has the texts that `ip` prints', () => {
  expect(errnoText('EEXIST')).toBe('File exists')
  expect(errnoText('524')).toBe('error 524')
})
