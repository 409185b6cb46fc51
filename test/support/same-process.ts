// same-process.ts - fails a test file of the project `unit` that leaves its process changed, because the next file runs in it.

import { afterAll, beforeAll, expect } from 'vitest'

const FUNCTIONS: readonly (readonly [object, string])[] = [
  [Math, 'random'],
  [Date, 'now'],
  [performance, 'now'],
  [console, 'log'],
  [process.stdout, 'write'],
  ...['Date', 'setTimeout', 'setInterval', 'setImmediate', 'fetch'].map((name) => [globalThis, name] as const),
]

/** Returns the parts of the process that a test file must restore. */
const state = () => ({
  environment: { ...process.env },
  folder: process.cwd(),
  exitCode: process.exitCode,
  listeners: Object.fromEntries(process.eventNames().map((name) => [name, process.listenerCount(name)])),
  functions: FUNCTIONS.map(([owner, name]): unknown => Reflect.get(owner, name)),
})

let before: ReturnType<typeof state>
beforeAll(() => {
  before = state()
})
afterAll(() => {
  // oxlint-disable-next-line no-standalone-expect -- the whole file is checked
  expect(state(), 'this file changes its process, which own-process.ts must recognize').toEqual(before)
})
