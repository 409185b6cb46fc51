// service-manager.test.ts - which notifications the service manager gets, and when.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { serveWatchdog } from '../../../../src/node/loops/service-manager.ts'
import { takeNotifier } from '../../../../src/report/notify.ts'
import {
  installRig,
  alive,
  dataPaths,
  own,
  ready,
  refuseToOpen,
  start,
  store,
  told,
  trouble,
  value,
} from '../../../support/node-rig.ts'

installRig()

it('serves the watchdog while the store is dead and while the device cannot be opened', async () => {
  start()
  await ready()
  store.setDown(true)
  refuseToOpen(new WeftError('DEVICE', 'no device today'))
  dataPaths[0]!.die('gone')
  await vi.advanceTimersByTimeAsync(300_000)
  expect(trouble()).toMatch(/^the data path is down; the etcd store does not answer/)
  expect(alive).toBe(21) // one at the start, and one every 15 s
  expect(told.at(-1)).toMatch(
    /^impaired by its data path and its store: the data path is down; .*; subnet 10\.5\.0\.\d+\/26, 0 peers, etcd store unreachable$/,
  )
})

it('reports its state to the service manager when the state changes', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(10_000)
  const subnet = own().replace('-', '/')
  store.put(own() === '10.5.0.64-26' ? '10.5.0.128-26' : '10.5.0.64-26', value('192.0.2.2'))
  await vi.advanceTimersByTimeAsync(10_000)
  store.setDown(true)
  await vi.advanceTimersByTimeAsync(90_000)
  store.setDown(false)
  await vi.advanceTimersByTimeAsync(90_000)
  expect(told.slice(-4)).toEqual([
    `subnet ${subnet}, 0 peers, etcd store reachable`,
    `subnet ${subnet}, 1 peer, etcd store reachable`,
    `impaired by its store: the etcd store does not answer; subnet ${subnet}, 1 peer, etcd store unreachable`,
    `subnet ${subnet}, 1 peer, etcd store reachable`,
  ])
})

it('a thread that hangs ends the keep-alive messages of the start', async () => {
  const sent: string[] = []
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const environment = { NOTIFY_SOCKET: '/run/manager', WATCHDOG_USEC: '30000000' }
  const notifier = await takeNotifier(environment, 1, log, async () => (_socket, message) => void sent.push(message))
  notifier!.aliveMeanwhile()
  const stopping = new AbortController()
  const threads = new Map([['loop', { requestedAt: 0, silentLooks: 9 }]])
  const loop = serveWatchdog({ notifier, signal: stopping.signal, threads } as never)
  await vi.advanceTimersByTimeAsync(60_000)
  expect(sent).toEqual(['WATCHDOG=1', 'WATCHDOG=1'])
  stopping.abort(new Error('enough'))
  await expect(loop).rejects.toThrow('enough')
})
