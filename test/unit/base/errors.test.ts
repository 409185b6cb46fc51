// errors.test.ts - the message of an error, and its code and remedy when it is passed on.

import { describe, expect, it } from 'vitest'
import { describeError, isWeftError, messageOf, prefixed, WeftError } from '../../../src/base/errors.ts'

const cause = new Error('why')
const error = new WeftError('CONFIG', 'it is wrong', { remedy: 'mend it', cause })

it('a WeftError has the given code, remedy and cause', () => {
  expect(error).toMatchObject({ name: 'WeftError', code: 'CONFIG', message: 'it is wrong', remedy: 'mend it', cause })
  const bare = new WeftError('STORE', 'x')
  expect([bare.remedy, 'cause' in bare]).toEqual([undefined, false])
})

it.each([
  [error, undefined, true],
  [error, 'CONFIG', true],
  [error, 'STORE', false],
  [cause, undefined, false],
  [undefined, undefined, false],
  [{ code: 'CONFIG' }, 'CONFIG', false],
] as const)('%s has the code %s: %s', (thrown, code, expected) => expect(isWeftError(thrown, code)).toBe(expected))

describe('a prefix', () => {
  it('is put before the message, and code, remedy and cause are kept', async () => {
    expect(await prefixed('a: ', Promise.resolve(7))).toBe(7)
    await expect(prefixed('a: ', Promise.reject(error))).rejects.toMatchObject({
      code: 'CONFIG',
      message: 'a: it is wrong',
      remedy: 'mend it',
      cause: error,
    })
    const bare = await prefixed('a: ', Promise.reject(new WeftError('GAP', 'x'))).catch((thrown: unknown) => thrown)
    expect(bare).toMatchObject({ code: 'GAP', message: 'a: x', remedy: undefined })
  })

  it('is not put before an error that is not a WeftError', async () => {
    await expect(prefixed('a: ', Promise.reject(cause))).rejects.toBe(cause)
  })
})

it.each([
  [error, 'it is wrong; mend it', 'it is wrong'],
  [new WeftError('STORE', 'x'), 'x', 'x'],
  [cause, cause.stack, 'why'],
  ['text', 'text', 'text'],
  [undefined, 'undefined', 'undefined'],
])('shows %s as one line, or with a stack if it is not a WeftError', (thrown, line, message) => {
  expect([describeError(thrown), messageOf(thrown)]).toEqual([line, message])
})

it('an error without a stack is shown by its message', () => {
  const stackless = new Error('why')
  delete stackless.stack
  expect(describeError(stackless)).toBe('why')
})
