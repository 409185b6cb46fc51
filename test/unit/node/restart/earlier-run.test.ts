// earlier-run.test.ts - which descriptors a service manager kept for this process.

import { describe, expect, it } from 'vitest'
import { keptName, takeKept } from '../../../../src/node/restart/earlier-run.ts'

describe('what the service manager kept', () => {
  it("is returned in order, only weftd's own descriptors, and the variables are deleted", () => {
    const environment: NodeJS.ProcessEnv = {
      LISTEN_PID: '42',
      LISTEN_FDS: '4',
      LISTEN_FDNAMES: `${keptName(10)}:other:${keptName(9)}:${keptName(0)}`,
      PATH: '/bin',
    }
    expect(takeKept(environment, 42)).toEqual([6, 5, 3])
    expect(environment).toEqual({ PATH: '/bin' })
  })

  it.each([[{}], [{ LISTEN_PID: '41', LISTEN_FDS: '1', LISTEN_FDNAMES: keptName(0) }], [{ LISTEN_PID: '42' }]])(
    'is empty with the variables %j',
    (environment) => expect(takeKept({ ...environment }, 42)).toEqual([]),
  )
})
