// threads.test.ts - what a node does about a thread that hangs.

import { expect, it, vi } from 'vitest'
import { installRig, alive, dataPaths, lines, logged, ready, start, told, trouble } from '../../../support/node-rig.ts'

installRig()

it('notices and names a thread that hangs, and stops serving the watchdog until the thread continues', async () => {
  start()
  await ready()
  const tick = async (ms: number, moves: boolean): Promise<void> => {
    for (let at = 0; at < ms; at += 1000) {
      const { rounds } = dataPaths[0]!
      dataPaths[0]!.rounds = { 'weft-loop0': (rounds['weft-loop0'] ?? 0) + 1, 'weft-loop1': moves ? at : 0 }
      await vi.advanceTimersByTimeAsync(1000)
    }
  }
  await tick(60_000, true)
  expect([trouble(), alive]).toEqual([undefined, 5])
  expect(dataPaths[0]!.looks).toBeGreaterThan(25) // every 2 s it says what it has noticed
  await tick(20_000, false)
  expect(trouble()).toBe('the thread weft-loop1 hangs')
  expect(lines.filter((line) => line.startsWith('E'))).toEqual([
    'E The thread weft-loop1 hangs: packets are not forwarded. Only a restart of weftd can help',
  ])
  const served = alive
  await tick(60_000, false)
  expect(alive).toBe(served)
  expect(told.at(-1)).toContain('the thread weft-loop1 hangs')
  await tick(20_000, true)
  expect([trouble(), alive]).toEqual([undefined, served + 1])
  expect(logged(/^W The thread weft-loop1 is alive again$/)).toBe(true)
})
