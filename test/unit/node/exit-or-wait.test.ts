// exit-or-wait.test.ts - which failures end the process, and what is published and logged while a fact is missing.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { WeftError, type ErrorCode } from '../../../src/base/errors.ts'
import { exitOrWait, throwUnlessWaiting, waitFor } from '../../../src/node/exit-or-wait.ts'

const lines: string[] = []
const published: string[] = []
const log = {
  info: (line: string) => void lines.push(`I ${line}`),
  warn: () => {},
  error: (line: string) => void lines.push(`E ${line}`),
  v: () => false,
}
const publish = (waitsFor: string): void => void published.push(waitsFor)
const { signal } = new AbortController()

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  lines.length = 0
  published.length = 0
})
afterEach(() => vi.useRealTimers())

/** The error of a program that was killed after its time limit (Node.js, `killed` of child_process.execFile). */
const timedOut = new WeftError('COMMAND', '`ip link` failed: no answer within 10 s', {
  cause: Object.assign(new Error('killed'), { killed: true }),
})
const prefixedError = (cause: WeftError): WeftError => new WeftError(cause.code, `Error: ${cause.message}`, { cause })

it.each<[what: string, error: unknown, isForwarding: boolean, answer: string]>([
  ['a mistake while nothing forwards', new WeftError('CONFIG', 'it is wrong'), false, 'exit'],
  ['a mistake while something forwards', new WeftError('CONFIG', 'it is wrong'), true, 'wait'],
  ['a store that is unreachable', new WeftError('STORE_UNAVAILABLE', 'no answer'), false, 'wait'],
  ['a program that did not answer in time', prefixedError(timedOut), false, 'wait'],
  ['a program that refused', new WeftError('COMMAND', 'refused', { cause: new Error('exit code 2') }), false, 'exit'],
  ['a defect while nothing forwards', new Error('a defect'), false, 'exit'],
  ['a defect while something forwards', new TypeError('a defect'), true, 'exit'],
])('%s', (_what, error, isForwarding, answer) => {
  expect(exitOrWait(error, isForwarding)).toBe(answer)
})

it('lets a running node wait until a mistake is corrected, but throws a defect and the reason of a stop', () => {
  const wrong = new WeftError('STORE', 'the password is wrong')
  expect(() => throwUnlessWaiting(wrong, signal)).not.toThrow()
  expect(() => throwUnlessWaiting(new Error('a defect'), signal)).toThrow('a defect')
  expect(() => throwUnlessWaiting(wrong, AbortSignal.abort(new Error('stop')))).toThrow('stop')
})

/** Finds a fact after these failures. */
function failing(...codes: readonly ErrorCode[]) {
  const left = [...codes]
  return async (): Promise<string> => {
    const code = left.shift()
    if (code) throw new WeftError(code, `no answer ${left.length}`, { remedy: 'look' })
    return 'found'
  }
}

it('publishes the missing fact and the reason of each failure, and logs the failures', async () => {
  const find = failing('STORE_UNAVAILABLE', 'STORE_UNAVAILABLE')
  const waiting = waitFor('a lease', { failure: 'failed to acquire lease: ', find }, { log, signal, publish })
  await vi.advanceTimersByTimeAsync(10_000)
  expect(await waiting).toBe('found')
  expect(published).toEqual([
    'waiting for a lease',
    'waiting for a lease: no answer 1',
    'waiting for a lease: no answer 0',
  ])
  expect(lines).toEqual([
    'E failed to acquire lease: no answer 1; look',
    'E failed to acquire lease: no answer 0; look',
  ])
})

it('logs that a fact is missing for some seconds without a failure', async () => {
  let found!: (text: string) => void
  const find = () => new Promise<string>((resolve) => (found = resolve))
  const waiting = waitFor('a lease', { failure: 'failed: ', find }, { log, signal, publish })
  await vi.advanceTimersByTimeAsync(6_000)
  expect(lines).toEqual(['I Waiting for a lease'])
  found('found')
  expect(await waiting).toBe('found')
  expect(vi.getTimerCount()).toBe(0)
})

it('waits for an operator only while a process forwards', async () => {
  let isForwarding = true
  const find = failing('STORE', 'STORE', 'STORE', 'STORE')
  const task = { failure: 'failed: ', find }
  const waiting = waitFor('a lease', task, { log, signal, isForwarding: () => isForwarding }).catch(
    (error: unknown) => error,
  )
  await vi.advanceTimersByTimeAsync(1_500)
  expect(lines.length).toBeGreaterThan(0)
  isForwarding = false
  await vi.advanceTimersByTimeAsync(60_000)
  expect(await waiting).toMatchObject({ code: 'STORE' })
})
