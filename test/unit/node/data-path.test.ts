// data-path.test.ts - when the device is looked at, and the data path opened again.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../src/errors.ts'
import { createBell } from '../../../src/host/bell.ts'
import {
  installRig,
  dataPaths,
  lines,
  logged,
  own,
  ready,
  refuseToOpen,
  start,
  store,
  until,
  value,
} from '../../support/node-rig.ts'

installRig()

it('opens the data path again when it died, with all peers, and closes the old one', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the TUN was deleted')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(dataPaths[0]!.closed).toBe(true)
  expect(dataPaths[1]!.applied).toEqual([['10.5.0.64-26']])
  expect(logged(/^E The data path stopped: the TUN was deleted/)).toBe(true)
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[1]!.die('again')
  await until(() => dataPaths.length === 3)
})

it('waits a second before it opens one that died at once twice, and between tries', async () => {
  start()
  await ready()
  dataPaths[0]!.die('at once')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0, 200)
  dataPaths[1]!.die('again')
  await until(() => dataPaths[1]!.closed, 200)
  await vi.advanceTimersByTimeAsync(700)
  expect(dataPaths).toHaveLength(2)
  refuseToOpen(new WeftError('PORT_IN_USE', 'the port is taken'))
  await vi.advanceTimersByTimeAsync(60_000)
  const tries = lines.filter((line) => line.includes('Cannot open the data path: the port is taken'))
  expect(tries.length).toBe(2)
  // What changes meanwhile is in force once it is open.
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  store.put(free, value('192.0.2.2'))
  refuseToOpen()
  await until(() => dataPaths.length === 3 && dataPaths[2]!.applied.length > 0, 2000)
  expect(dataPaths[2]!.applied.at(-1)).toEqual([free])
})

it.each([
  ['five seconds after one that was not, or that nobody would report', true, 5000],
  ['half a minute where all was right and what changes is reported', false, 30_000],
])('has the device looked at within %s, and says what was mended', async (_, unreported, withinMs) => {
  start()
  await ready()
  const wrong = async (after: number): Promise<number> => {
    dataPaths[0]!.mended = ['flannel0 was down']
    await vi.advanceTimersByTimeAsync(after - 100)
    return dataPaths[0]!.mended.length
  }
  dataPaths[0]!.unreported = unreported
  await wrong(5100)
  await until(() => logged(/^W Repaired: flannel0 was down/))
  await vi.advanceTimersByTimeAsync(10_000)
  expect(await wrong(withinMs === 5000 ? 5300 : 25_000)).toBe(withinMs === 5000 ? 0 : 1)
  await vi.advanceTimersByTimeAsync(5300)
  expect(dataPaths[0]!.mended).toEqual([])
})

it('looks again in five seconds where peers could not be set', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  dataPaths[0]!.refusal = new WeftError('COMMAND', 'no')
  store.put(free, value('192.0.2.2'))
  await vi.advanceTimersByTimeAsync(31_000)
  dataPaths[0]!.refusal = undefined
  await vi.advanceTimersByTimeAsync(5300)
  await until(() => dataPaths[0]!.applied.at(-1)?.includes(free) === true, 0)
})

it('looks at the device within a quarter of a second when the host reports a change, and so once for many', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(1000)
  for (const round of [1, 2, 3]) {
    dataPaths[0]!.mended = ['flannel0 was down']
    for (let times = 0; times < 10; times++) hostChanged.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
  }
})

it('looks again in five seconds after a report: what came right behind it may not have been reported', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  hostChanged.ring()
  await vi.advanceTimersByTimeAsync(1000)
  dataPaths[0]!.mended = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(5000)
  await until(() => logged(/^W Repaired: flannel0 was down/), 0)
})

it('says only the first of many repairs, and looks less often when somebody undoes them', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  dataPaths[0]!.mended = Array.from({ length: 100 }, () => 'flannel0 was down')
  await vi.advanceTimersByTimeAsync(5000)
  dataPaths[0]!.mended = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(4000)
  expect(dataPaths[0]!.mended).toHaveLength(1)
  expect(lines.filter((line) => line.startsWith('W Repaired'))).toHaveLength(7)
  await vi.advanceTimersByTimeAsync(120_000)
  dataPaths[0]!.mended = ['flannel0 had lost its address']
  hostChanged.ring()
  await until(() => logged(/^W Repaired: flannel0 had lost its address \(repair \d+ since the start\)$/))
})
