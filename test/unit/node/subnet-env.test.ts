// subnet-env.test.ts - when subnet.env is written.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { expect, it, vi } from 'vitest'
import {
  installRig,
  inTurns,
  lines,
  logged,
  readiness,
  ready,
  start,
  subnetFile,
  told,
  until,
} from '../../support/node-rig.ts'

installRig()

it('goes on when subnet.env cannot be written, and says it is not ready', async () => {
  mkdirSync(subnetFile())
  start()
  await until(() => logged(/^W Failed to write subnet file: .*--subnet-file/) && logged(/Running backend/))
  expect([logged(/flannel is ready/), readiness()]).toEqual([false, false])
  // As flanneld it has told its service manager READY=1 all the same.
  await until(() => told.some((status) => status.endsWith(`, ${subnetFile()} is not written`)))
  // It is tried again every five seconds, and not spoken of each time.
  for (let tries = 0; tries < 4; tries++) {
    await vi.advanceTimersByTimeAsync(5_000)
    for (let turns = 0; turns < 50; turns++) await new Promise((resolve) => setImmediate(resolve))
  }
  expect(lines.filter((line) => line.includes('Failed to write subnet file')).length).toBeLessThanOrEqual(2)
  rmSync(subnetFile(), { recursive: true })
  await inTurns(() => logged(/flannel is ready/))
  expect(readiness()).toBe(true)
  expect(logged(/Repaired/)).toBe(false)
})

it('writes subnet.env again when it was removed or changed, says so, and leaves it alone otherwise', async () => {
  start()
  await ready()
  const text = readFileSync(subnetFile(), 'utf8')
  const writes = (): number => lines.filter((line) => line.includes('Wrote subnet file')).length
  await vi.advanceTimersByTimeAsync(30_000)
  expect(writes()).toBe(1)
  const spoils = [() => rmSync(subnetFile()), () => writeFileSync(subnetFile(), 'FLANNEL_MTU=1\n')]
  for (const [index, spoil] of spoils.entries()) {
    spoil()
    await inTurns(() => writes() === index + 2)
    expect(readFileSync(subnetFile(), 'utf8')).toBe(text)
    expect(logged(new RegExp(`^W Repaired: .*was gone or changed \\(repair ${index + 1} `))).toBe(true)
  }
})
